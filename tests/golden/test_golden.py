"""The emulator against silicon: one kernel, the same inputs, one unit in the last place."""

import pytest
import torch

import fa4
from fa4 import emulator
from tests.golden.cases import CASES, Golden

AGREEING = 0.999  # of the elements: exp2 and reciprocal of the GPU are approximate
UNITS = {torch.bfloat16: 1, torch.float16: 8}  # one unit in the last place of bfloat16


def units_apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many representable numbers lie between two 16-bit floats."""

    def ordered(x: torch.Tensor) -> torch.Tensor:
        bits = x.contiguous().view(torch.int16).int()
        return torch.where(bits < 0, -32768 - bits, bits)

    return (ordered(a) - ordered(b)).abs()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.kernel == "fa4"], ids=lambda case: case.name
)
def test_emulated_hopper_is_what_the_gpu_computed(
    case: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FA4_EMULATE_ARCH", "sm_90a")
    with emulator.session(arch="sm_90a"):
        out, lse = fa4.flash_attn_func(*case.inputs(), causal=case.causal, return_lse=True)
    expected_out, expected_lse = case.load()
    apart = units_apart(out, expected_out)
    assert (apart <= UNITS[case.dtype]).float().mean() >= AGREEING
    torch.testing.assert_close(lse, expected_lse, atol=1e-5, rtol=1e-5)


def test_units_apart() -> None:
    a = torch.tensor([1.0, -1.0, 0.0, 1.0], dtype=torch.bfloat16)
    b = torch.tensor([1.0078125, -1.0078125, -0.0, -1.0], dtype=torch.bfloat16)
    assert units_apart(a, b).tolist()[:3] == [1, 1, 0]
    assert units_apart(a, b)[3] > 1000
