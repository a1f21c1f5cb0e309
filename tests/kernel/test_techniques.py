"""Every switch of a Hopper tuning: it changes the kernel, and the result is right either way."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from fa4 import emulator, launch, reference
from fa4.compile import artifacts
from fa4.plan import plan_forward
from fa4.plan_hopper import HopperTuning
from fa4.problem import default_scale, example_problem

TUNINGS = {
    "a CTA per tile": HopperTuning(3, 64, 3, 2, (160, 24), persistent=False),
    "shortest first": HopperTuning(3, 64, 3, 2, (160, 24), longest_first=False),
    "no skipping": HopperTuning(3, 64, 3, 2, (160, 24), skip=False),
    "taking turns": HopperTuning(3, 64, 3, 2, (160, 24), ping_pong=True),
    "turns of two": HopperTuning(2, 128, 2, 2, (240, 24), ping_pong=True),
    "O of its own": HopperTuning(2, 64, 3, 1, (240, 24), o_parts=1),
    "O in two parts": HopperTuning(2, 64, 3, 1, (240, 24), o_parts=2),
    "O where Q was": HopperTuning(2, 64, 3, 1, (240, 24)),
}


@pytest.mark.parametrize("tuning", TUNINGS.values(), ids=TUNINGS.keys())
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("schedule", ["early", "late"])
def test_result_is_right(tuning: HopperTuning, causal: bool, schedule: str) -> None:
    problem = example_problem(
        *(128, 128), seqlen_q=400, seqlen_k=300, heads_q=2, causal=causal, scale=default_scale(128)
    )
    plan = replace(plan_forward(problem, "sm_90a"), tuning=tuning)
    generator = torch.Generator().manual_seed(0)
    shapes = ((400, 2), (300, 1), (300, 1))
    q, k, v = (torch.randn(1, *s, 128, generator=generator).bfloat16() for s in shapes)
    out, lse = torch.full_like(q, torch.nan), torch.empty(1, 2, 400)
    strides = tuple(t.stride() for t in (q, k, v, out))
    run = launch.prepare(problem, plan, strides, q.device, with_lse=True)
    with emulator.session(schedule, arch="sm_90a", num_sms=2):
        run(q, k, v, out, lse)
    agreement = reference.compare(problem, (q, k, v), out, lse)
    assert agreement.ok, agreement


SWITCHES = ("o_parts", "persistent", "longest_first", "skip", "ping_pong")
DEFAULTS = {field.name: field.default for field in fields(HopperTuning) if field.name in SWITCHES}
SWITCHED = {
    name: (tuning, changed)
    for name, tuning in TUNINGS.items()
    if (changed := {s: old for s, old in DEFAULTS.items() if getattr(tuning, s) != old})
}


def test_every_switch_is_among_them() -> None:
    assert {switch for _, changed in SWITCHED.values() for switch in changed} == set(SWITCHES)


@pytest.mark.parametrize(("tuning", "without"), SWITCHED.values(), ids=SWITCHED.keys())
def test_a_switch_changes_the_code(tuning: HopperTuning, without: dict[str, object]) -> None:
    problem = example_problem(64, causal=True, seqlen_q=400, seqlen_k=300, scale=0.1)
    planned = plan_forward(problem, "sm_90a")
    plans = [replace(planned, tuning=t) for t in (tuning, replace(tuning, **without))]
    first, second = (artifacts(plan).ptx for plan in plans)
    assert first != second
