"""The backward kernels as a Hopper GPU would run them, emulated: against float64."""

from dataclasses import replace

import pytest
import torch

import fa4
from fa4 import reference
from fa4.emulator.sessions import DEVICES
from fa4.on_hopper.modes import MODES
from tests.asked import problem_of
from tests.backward.gradients import draw, upstream
from tests.on_hopper.rewritten import RewrittenSession

TWO_SMS = replace(DEVICES["sm_100a"], num_sms=2)
DIMS = [(64, 64), (96, 96), (128, 128), (192, 128)]
SHORT = [((128, 128), "all"), ((192, 128), "lazy")]
CASES = [
    pytest.param(dims, mode, marks=() if (dims, mode) in SHORT else pytest.mark.slow)
    for dims in DIMS
    for mode in MODES
]


@pytest.mark.parametrize(("dims", "mode"), CASES, ids=str)
def test_equals_the_reference(dims: tuple[int, int], mode: str) -> None:
    check(dims, RewrittenSession(device=TWO_SMS, modes=MODES[mode]))


def test_deterministic_kernels_wait_for_their_turns() -> None:
    """Their CTAs side by side, and the last ones first."""
    side_by_side = RewrittenSession("late", device=TWO_SMS, resident=2, modes=MODES["all"])
    check((64, 64), side_by_side, deterministic=True)


def check(dims: tuple[int, int], session: RewrittenSession, **options: object) -> None:
    inputs = draw((150, 140), heads=(1, 1), dims=dims)
    leaves, grads = tuple(t.requires_grad_() for t in inputs), upstream(inputs)
    outputs = fa4.flash_attn_func(*leaves, causal=True, return_lse=True, **options)
    with session as here:
        results = torch.autograd.grad(outputs, leaves, grads)
    assert len(here.launches) == 3
    agreement = reference.compare_gradients(
        problem_of(*inputs, causal=True), inputs, grads, results
    )
    assert agreement.ok, agreement
