"""Gradients do not depend on the order in which warps and asynchronous effects take their turns.

dK and dV have the same bits always. dQ is added up by reductions in any order: with two blocks of
keys that does not change its bits either, since 0 + a + b = 0 + b + a; with more it may, within
rounding.
"""

import pytest
import torch

import fa4
from fa4 import emulator
from tests.backward.gradients import Tensors, differentiate, draw, upstream

HOSTILE = [("late", 0), *((kind, seed) for seed in range(4) for kind in ("random", "priority"))]
MANY_BLOCKS = [("late", 0), ("random", 0), ("priority", 0), ("priority", 1)]
KINDS = [  # head dims that are computed in different ways, and keys of a CTA
    pytest.param("sm_90a", (64, 64), 128, id="dq by rows"),
    pytest.param("sm_90a", (96, 96), 128, id="dq by columns"),
    pytest.param("sm_90a", (192, 128), 64, id="columns split"),
    pytest.param("sm_100a", (128, 128), 128, id="tensor memory"),
    pytest.param("sm_100a", (96, 96), 128, id="three chunks of dQ"),
    pytest.param("sm_100a", (192, 128), 128, id="shared columns"),
]
each_kind = pytest.mark.parametrize(("arch", "dims", "keys"), KINDS, indirect=["arch"])


def problem(dims: tuple[int, int], keys: int) -> tuple[Tensors, tuple[torch.Tensor, ...]]:
    inputs = draw((300, keys), dims=dims)
    return inputs, upstream(inputs)


@each_kind
def test_same_bits(dims: tuple[int, int], keys: int) -> None:
    """Two blocks of keys."""
    inputs, grads = problem(dims, 2 * keys - 28)
    expected = differentiate(inputs, grads, causal=True)
    for schedule, seed in HOSTILE:
        got = differentiate(inputs, grads, schedule, seed, causal=True)
        assert all(a.equal(b) for a, b in zip(got, expected, strict=True)), (schedule, seed)


def test_many_blocks_of_keys() -> None:
    inputs, grads = problem((64, 64), 500)
    expected = differentiate(inputs, grads)
    for schedule, seed in MANY_BLOCKS:
        dq, dk, dv = differentiate(inputs, grads, schedule, seed)
        assert dk.equal(expected[1])
        assert dv.equal(expected[2])
        # one unit in the last place of bfloat16 where float32 sums round to either side
        torch.testing.assert_close(dq, expected[0], rtol=2**-7, atol=1e-6)


@each_kind
def test_no_race_and_no_missing_fence(arch: str, dims: tuple[int, int], keys: int) -> None:
    """The checker looks at every access, whatever order the schedule took."""
    inputs, grads = problem(dims, keys - 28)
    leaves = tuple(t.requires_grad_() for t in inputs)
    outputs = fa4.flash_attn_func(*leaves, causal=True, return_lse=True)
    with emulator.session(arch=arch, num_sms=2, check=True) as checked:
        torch.autograd.grad(outputs, leaves, grads)
    assert len(checked.launches) == 3
