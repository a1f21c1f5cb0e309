"""The Hopper kernel in the emulator: right answers, frozen references."""

import math

import pytest
import torch

import fa4
from bench.mutants.frozen import Tensors, jump
from fa4 import emulator, reference
from tests.asked import problem_of

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (70, 20)},
    "softcap": {"softcap": 20.0},
}


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FA4_EMULATE_ARCH", "sm_90a")


def draw(lengths: tuple[int, int], dims: tuple[int, int], dtype: torch.dtype) -> Tensors:
    """Two query heads on one head of keys and values."""
    generator = torch.Generator().manual_seed(11)
    shapes = ((lengths[0], 2, dims[0]), (lengths[1], 1, dims[0]), (lengths[1], 1, dims[1]))
    q, k, v = (torch.randn(1, *shape, generator=generator).to(dtype) for shape in shapes)
    return q, k, v


def attend(inputs: Tensors, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    """On two SMs, so that a CTA takes several tiles from the counter."""
    with emulator.session(arch="sm_90a", num_sms=2):
        return fa4.flash_attn_func(*inputs, return_lse=True, **options)


def check(inputs: Tensors, out: torch.Tensor, lse: torch.Tensor, **options: object) -> None:
    """The error rule against the float32 oracle."""
    problem = problem_of(*inputs, **options)
    agreement = reference.compare(problem, inputs, out, lse)
    assert agreement.out_error <= agreement.out_limit, agreement
    expected = reference.attention(problem, *inputs)[1]
    torch.testing.assert_close(lse, expected, atol=5e-4, rtol=1e-6)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_agrees_with_float32(mask: str, dims: tuple[int, int], dtype: torch.dtype) -> None:
    inputs = draw((333, 257), dims, dtype)
    check(inputs, *attend(inputs, **MASKS[mask]), **MASKS[mask])


@pytest.mark.parametrize("lengths", [(1, 1), (63, 640), (640, 63), (200, 1), (192, 64)], ids=str)
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_lengths(lengths: tuple[int, int], mask: str) -> None:
    inputs = draw(lengths, (128, 128), torch.bfloat16)
    check(inputs, *attend(inputs, **MASKS[mask]), **MASKS[mask])


@pytest.mark.parametrize("bits", [5, 50, 95, 100, 105, 127, 129, 300])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_reference_that_a_later_score_overtakes(bits: int, mask: str) -> None:
    inputs = jump(draw((200, 300), (64, 64), torch.bfloat16), bits, slice(100, 130))
    out, lse = attend(inputs, **MASKS[mask])
    check(inputs, out, lse, **MASKS[mask])


def test_a_late_key_that_dominates_is_exact() -> None:
    """Its P lies half way between two bfloat16 numbers if the reference stays behind: O is off by
    a unit then, where V times 1 is exact."""
    halfway = math.log2(1.0 + 2.0**-8)
    q, k, v = jump(draw((130, 300), (64, 64), torch.bfloat16), 30.0 + halfway, slice(0, 100))
    v[:, 0] = 255.0 / 64.0
    out, _ = attend((q, k, v))
    assert (out[:, :100] == 255.0 / 64.0).all()


def test_alternating_tiles_are_done_again() -> None:
    inputs = draw((900, 300), (128, 128), torch.bfloat16)
    inputs = jump(inputs, 200, *(slice(start, start + 128) for start in (0, 384)))
    check(inputs, *attend(inputs))


def test_huge_values() -> None:
    """O overflows with a reference that lags: l is in range, but l times V is not."""
    q, k, v = jump(draw((200, 300), (64, 64), torch.bfloat16), 60, slice(0, 200))
    scaled, lse = attend((q, k, v * 2.0**120))
    plain, same = attend((q, k, v))
    assert torch.isfinite(scaled).all()
    torch.testing.assert_close(scaled * 2.0**-120, plain, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, same, atol=5e-4, rtol=1e-6)


def test_first_block_hidden_by_minus_infinity() -> None:
    """Keys of -inf in the block that the reference is taken from: the tile is done exactly."""
    q, k, v = draw((128, 256), (64, 64), torch.bfloat16)
    q[..., 0], k[:, -64:, :, 0] = 1.0, -torch.inf
    visible = q, k[:, :-64], v[:, :-64]
    out, lse = attend((q, k, v))
    check(visible, out, lse)
