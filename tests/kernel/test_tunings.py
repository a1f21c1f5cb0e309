"""Every line of Hopper's table of tunings, also those that only long sequences get."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fa4 import emulator, launch, reference
from fa4.plan import plan_forward
from fa4.plan_hopper import TUNED, Line
from fa4.problem import default_scale, example_problem

LINES = {(line.dims, line.tuning): line for line in TUNED}
KEYS = 420  # several blocks of any width


@pytest.mark.parametrize("schedule", ["early", "late", "checked"])
@pytest.mark.parametrize("line", LINES.values(), ids=lambda line: f"{line.dims}-{line.tuning}")
def test_result_is_right(line: Line, schedule: str) -> None:
    causal = line.masked is not False
    problem = example_problem(
        *line.dims,
        seqlen_q=300,
        seqlen_k=KEYS,
        heads_q=2,
        causal=causal,
        scale=default_scale(line.dims[0]),
    )
    plan = replace(plan_forward(problem, "sm_90a"), tuning=line.tuning)
    plan.check()
    generator = torch.Generator().manual_seed(0)
    shapes = ((300, 2, line.dims[0]), (KEYS, 1, line.dims[0]), (KEYS, 1, line.dims[1]))
    q, k, v = (torch.randn(1, *s, generator=generator).bfloat16() for s in shapes)
    out, lse = torch.full((1, 300, 2, line.dims[1]), torch.nan).bfloat16(), torch.empty(1, 2, 300)
    strides = tuple(t.stride() for t in (q, k, v, out))
    run = launch.prepare(problem, plan, strides, q.device, with_lse=True)
    kind = "early" if schedule == "checked" else schedule
    with emulator.session(kind, arch="sm_90a", num_sms=2, check=schedule == "checked"):
        run(q, k, v, out, lse)
    agreement = reference.compare(problem, (q, k, v), out, lse)
    assert agreement.ok, agreement
