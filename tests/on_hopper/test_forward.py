"""The forward kernel as a Hopper GPU would run it, emulated: against float32."""

from dataclasses import replace

import pytest
import torch

import fa4
from bench.on_hopper.trials import VARIANTS, small_trial
from fa4.emulator.sessions import DEVICES
from fa4.on_hopper.modes import MODES, Modes
from fa4.reference import compare
from tests.on_hopper.rewritten import RewrittenSession

TWO_SMS = replace(DEVICES["sm_100a"], num_sms=2)


def run(trial, modes, schedule="early", device=TWO_SMS):
    inputs = trial.inputs("cpu")
    with RewrittenSession(schedule, trial.seed, device=device, modes=modes):
        out, lse = fa4.flash_attn_func(*inputs, return_lse=True, **trial.options)
    agreement = compare(trial.problem(), inputs, out, lse)
    assert agreement.ok, f"{trial}: {agreement}"
    return out, lse


def first(dims: tuple[int, int]) -> int:
    """The first variant with these head dims."""
    return next(i for i, variant in enumerate(VARIANTS) if variant.dims == dims)


CASES = [
    (first((64, 64)), "plain"),
    (first((96, 96)) + 4, "lazy"),
    (first((128, 128)) + 5, "all"),
    (first((192, 128)) + 12, "defer"),
]
LONG = [
    pytest.param(variant, mode, marks=pytest.mark.slow)
    for variant in range(len(VARIANTS))
    for mode in ("plain", "all")
]


@pytest.mark.parametrize(("variant", "mode"), [*CASES, *LONG])
def test_equals_the_reference(variant, mode):
    run(replace(small_trial(variant), heads=(1, 1)), MODES[mode])


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_under_schedules_with_several_tiles_per_cta(schedule):
    """Priorities are no schedule for it: a polling warp would starve all others."""
    trial = replace(small_trial(4), lengths=(300, 200))
    run(trial, MODES["all"], schedule)


def test_equals_the_unchanged_program():
    trial = replace(small_trial(first((128, 128)) + 4), heads=(1, 1))
    out, lse = run(trial, Modes())
    with fa4.emulator.session(num_sms=2):
        expected, expected_lse = fa4.flash_attn_func(
            *trial.inputs("cpu"), return_lse=True, **trial.options
        )
    torch.testing.assert_close(lse, expected_lse, atol=1e-5, rtol=1e-5)
    assert (out == expected).float().mean() > 0.99
