"""The emulator against silicon: one kernel, the same inputs, one unit in the last place."""

import pytest
import torch

import fa4
from fa4 import emulator
from fa4.reference import AGREEING, UNITS, units_apart
from tests.golden.cases import CASES, Golden

ARCHS = {"fa4": "sm_90a", "blackwell": "sm_100a"}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.kernel in ARCHS], ids=lambda case: case.name
)
def test_the_emulator_computes_what_the_gpu_did(
    case: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hopper's kernels ran natively, Blackwell's with tensor memory in software."""
    arch = ARCHS[case.kernel]
    monkeypatch.setenv("FA4_EMULATE_ARCH", arch)
    with emulator.session(arch=arch):
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
