"""`python -m bench hopper-backward`: gradients on this GPU, timed."""

from __future__ import annotations

import argparse
import ast
import time
from collections.abc import Iterable, Sequence

import torch

from bench.hopper import cells
from bench.hopper.backward_implementations import (
    ARCH,
    Changes,
    backward_implementations,
    tuned,
)
from bench.hopper.cells import Cell, grid
from bench.hopper.command import add_grid_options, measure_grid
from bench.hopper.compiling import compile_plan, processes
from bench.hopper.cuda import CudaDevice
from bench.hopper.implementations import gemm
from bench.hopper.measure import Bench
from bench.hopper.passes import BACKWARD
from bench.hopper.summary import BACKWARD_GOALS
from bench.hopper.timing import Effort
from fa4.plan_backward import plan_backward
from fa4.plan_base import BasePlan
from fa4.problem import Problem, example_problem
from fa4.profile.options import positive


def main(argv: list[str]) -> int:
    """Measure, print and save; 1 when ours is wrong somewhere or cells are left."""
    options = parse(argv)
    if not torch.cuda.is_available():
        print("No CUDA device here: this command measures a GPU.")
        return 2
    variants = _variants(options)
    todo = grid(options.sets, options.head_dims, options.masks, options.lengths)
    plans = {plan_backward(_problem(cell, options.dtype), ARCH) for cell in todo}
    plans |= {tuned(plan, changes) for plan in plans for changes in variants}
    _compile_all(plans, () if options.ours_only else todo)
    device = CudaDevice()
    bench = Bench(
        device,
        backward_implementations(options.ours_only, variants),
        gemm(cells.GEMM_SIZE, device.name),
        getattr(torch, options.dtype),
        effort=Effort(rounds=options.rounds),
        measured=BACKWARD,
    )
    return measure_grid(bench, options, ["hopper-backward", *argv], BACKWARD_GOALS)


def parse(argv: list[str]) -> argparse.Namespace:
    """Options; wrong ones end the program."""
    parser = argparse.ArgumentParser(prog="python -m bench hopper-backward", description=__doc__)
    add_grid_options(parser)
    parser.add_argument(
        "--rounds", type=positive, default=Effort.rounds, help="of timing, at least"
    )
    parser.add_argument(
        "--tunings",
        nargs="*",
        default=[],
        help="changes to the tuning to time as well, e.g. \"{'rounded_p': False}\"",
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="time deterministic=True as well"
    )
    return parser.parse_args(argv)


def _variants(options: argparse.Namespace) -> tuple[Changes, ...]:
    variants = tuple(ast.literal_eval(text) for text in options.tunings)
    return (*variants, {"deterministic": True}) if options.deterministic else variants


def _problem(cell: Cell, dtype: str) -> Problem:
    return example_problem(cell.head_dim, causal=cell.causal, dtype=dtype)


# ---- compiling: by as many processes as there are cores, into the caches


def _compile_all(plans: Iterable[BasePlan], peers_of: Sequence[Cell]) -> None:
    """Ours, and flash-attn-4's for the cells."""
    plans, start = list(plans), time.monotonic()
    kinds = sorted({(c.head_dim, c.causal, c.heads_q // c.heads_kv) for c in peers_of})
    with processes() as pool:
        peers, ours = pool.map(_compile_peer, kinds), pool.map(compile_plan, plans)
        print("\n".join(filter(None, (*peers, *ours))))
    seconds = time.monotonic() - start
    print(f"{len(plans)} + {len(kinds)} kernels compiled in {seconds:.0f} s", flush=True)


def _compile_peer(kind: tuple[int, bool, int]) -> str:
    """Returns what went wrong."""
    (head_dim, causal, group), call = kind, backward_implementations()[-1]
    if call.missing:
        return ""
    try:
        queries = Cell(head_dim, causal, 256, group, 1)
        inputs = BACKWARD.inputs(queries, torch.bfloat16, "cuda", None)
        call.bind(inputs, causal)()
    except Exception as error:
        return f"flash-attn-4 {kind}: {type(error).__name__}: {str(error)[:300]}"
    return ""
