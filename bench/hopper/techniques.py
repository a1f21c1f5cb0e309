"""`python -m bench techniques`: what each technique of the Hopper plans is worth on this GPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from bench.hopper import accuracy, cells, files
from bench.hopper.accuracy import Tensors
from bench.hopper.cells import Cell, grid
from bench.hopper.passes import FORWARD
from bench.hopper.timing import Call, Device, Effort, Work, estimate_ms, interleave
from bench.progress import progress
from fa4.plan import plan_forward
from fa4.plan_hopper import HopperPlan, HopperTuning
from fa4.problem import Problem, default_scale, example_problem
from fa4.profile.options import output_folder, positive
from fa4.profile.table import table

PLANNED = "as planned"
ROUNDS = 8


def _tuning(**changes: object) -> Callable[[HopperPlan], HopperPlan]:
    return lambda plan: replace(plan, tuning=replace(plan.tuning, **changes))


def _wide_blocks(plan: HopperPlan) -> HopperPlan:
    """Two warpgroups and 128 keys, as FlashAttention-3 at head dim 128."""
    return replace(plan, tuning=HopperTuning(2, 128, 2, 1, (240, 24)))


def _other_turns(plan: HopperPlan) -> HopperPlan:
    return replace(plan, tuning=replace(plan.tuning, ping_pong=not plan.tuning.ping_pong))


# what a plan would be without the technique, or with the opposite choice
WITHOUT: dict[str, Callable[[HopperPlan], HopperPlan]] = {
    "a CTA per tile": _tuning(persistent=False),
    "shortest tiles first": _tuning(longest_first=False),
    "no blocks skipped": _tuning(skip=False),
    "running maximum": lambda plan: replace(plan, fixed_reference=False),
    "2 K/V stages": _tuning(kv_stages=2),
    "1 buffer for Q and O": _tuning(q_stages=1, o_parts=0),
    "other turns": _other_turns,
    "2 x 64 rows, 128 keys": _wide_blocks,
}


def variants(plan: HopperPlan) -> dict[str, HopperPlan]:
    """The plan, and every other one that a technique less makes of it and that fits the chip."""
    found = {PLANNED: plan}
    for name, change in WITHOUT.items():
        changed = change(plan)
        if changed != plan and _fits(changed):
            found[name] = changed
    return found


def _fits(plan: HopperPlan) -> bool:
    try:
        plan.check()
    except ValueError:
        return False
    return True


def problem_of(cell: Cell) -> Problem:
    """A cell of the grid as a problem."""
    return example_problem(
        cell.head_dim,
        batch=cell.batch,
        seqlen_q=cell.length,
        seqlen_k=cell.length,
        heads_q=cell.heads_q,
        heads_kv=cell.heads_kv,
        causal=cell.causal,
        scale=default_scale(cell.head_dim),
    )


def main(argv: list[str]) -> int:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(prog="python -m bench techniques", description=__doc__)
    parser.add_argument("--head-dims", type=positive, nargs="+", default=cells.HEAD_DIMS)
    parser.add_argument("--lengths", type=positive, nargs="+", default=(512, 2048, 8192))
    parser.add_argument("--out", type=output_folder, default="out", help="folder for the results")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("This command measures a Hopper GPU (compute capability 9.0), and here is none.")
        return 2
    from bench.hopper.cuda import CudaDevice

    todo = grid(("mha",), options.head_dims, cells.MASKS, options.lengths)
    run, rows = files.environment(), {}
    for cell in progress(todo, "cell"):
        rows[str(cell)] = measure(CudaDevice(), cell)
        # anew after each cell: a run that is cut short keeps what it has measured
        files.save(options.out, "techniques.json", json.dumps({**run, "ms": rows}))
        files.save(options.out, "techniques.txt", report(rows))
    print(report(rows))
    return 0


def measure(device: Device, cell: Cell) -> dict[str, float]:
    """Milliseconds per launch of every variant, interleaved; raises if one is wrong."""
    problem = problem_of(cell)
    inputs = FORWARD.inputs(cell, torch.bfloat16, device.name, None)
    expected, works = accuracy.reference(*inputs, cell.causal), {}
    for name, plan in variants(plan_forward(problem, "sm_90a")).items():
        call = _bind(problem, plan, inputs)
        error = accuracy.error(call(), expected)
        if not error.ok:
            raise RuntimeError(f"{cell}, {name}: relative RMS {error.all_rows:.1e}")
        launches = Effort().launches(estimate_ms(device, call))
        works[name] = Work(device.capture(call, launches).replay, 1, launches)
    samples = interleave(device, works, ROUNDS, wait_between=False)
    return {name: found.ms for name, found in samples.items()}


def _bind(problem: Problem, plan: HopperPlan, inputs: Tensors) -> Call:
    from fa4 import launch

    out = torch.empty_like(inputs[0])
    strides = tuple(t.stride() for t in (*inputs, out))
    run = launch.prepare(problem, plan, strides, out.device, with_lse=False)

    def call() -> torch.Tensor:
        run(*inputs, out, None)
        return out

    return call


def report(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Speed as planned over speed without the technique; above 1 it pays."""
    names = [name for name in WITHOUT if any(name in row for row in rows.values())]
    lines = [
        (
            cell,
            f"{row[PLANNED]:.3f}",
            *(f"{row[name] / row[PLANNED]:.3f}" if name in row else "-" for name in names),
        )
        for cell, row in rows.items()
    ]
    title = "Speed as planned over that of other choices (- where the plan is the same or unfit)"
    return f"{title}\n{table(' | '.join(('cells', 'ms', *names)), lines)}"
