"""The problems that mutants run on: they wrap every edge several times."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bench.mutants.frozen import jump
from fa4.plan import plan_forward
from fa4.plan_base import BasePlan
from fa4.plan_hopper import HopperTuning
from fa4.problem import Problem, default_scale, example_problem

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A problem, its plan, and q, k, v."""

    problem: Problem
    plan: BasePlan
    inputs: Tensors


def causal(arch: str, rows: int, keys: int, heads: int = 2) -> Case:
    """d128, causal, all heads on one of keys and values.

    Blocks are taken from the last to the first, and keys grow towards the first: rows rescale O
    at almost every block.
    """
    return _case(arch, (rows, keys, heads), causal=True)


def windowed(rows: int, keys: int, left: int) -> Case:
    """The same on Hopper, where rows see their own key and `left` before."""
    return _case("sm_90a", (rows, keys, 2), window_left=left, window_right=0)


def done_again(case: Case) -> Case:
    """The case with all tiles of the first rows done a second time."""
    return replace(case, inputs=jump(case.inputs, 200, slice(0, 30)))


def _case(arch: str, sizes: tuple[int, int, int], **mask: object) -> Case:
    rows, keys, heads = sizes
    problem = example_problem(128, seqlen_q=rows, seqlen_k=keys, heads_q=heads, **mask)
    problem = replace(problem, scale=default_scale(128))
    generator = torch.Generator().manual_seed(3)

    def draw(length: int, heads: int) -> torch.Tensor:
        return torch.randn(1, length, heads, 128, generator=generator)

    growth = torch.linspace(6.0, 0.5, keys).reshape(1, keys, 1, 1)
    q, k, v = draw(rows, heads), draw(keys, 1) * growth, draw(keys, 1)
    inputs = tuple(t.to(torch.bfloat16) for t in (q, k, v))
    return Case(problem, plan_forward(problem, arch), inputs)


def tuned(case: Case, *tuning: object) -> Case:
    """The case with a tuning of Hopper that its number of blocks is made for."""
    return replace(case, plan=replace(case.plan, tuning=HopperTuning(*tuning)))


# By kernel; one SM, so that its CTA takes all tiles. Those of Hopper have a tuning that the numbers
# of blocks are made for: a K released too early (k_loaded wait 0 in front of a warpgroup's blocks,
# 3 behind them) counts for the block a ring earlier. Waits for V in between hide that, but where
# another warpgroup's first block lies a ring earlier: at the second tile after a first one of as
# many blocks as the ring has stages, or within a tile that a window makes as narrow.
TWO_BUFFERS, ONE_BUFFER = (2, 64, 4, 2, (240, 24)), (2, 64, 2, 1, (240, 24))
CASES = {
    "sm_100a": (causal("sm_100a", 300, 640), causal("sm_100a", 300, 100)),
    "sm_90a": tuple(
        tuned(case, *TWO_BUFFERS)
        for case in (
            done_again(causal("sm_90a", 200, 448, heads=1)),
            causal("sm_90a", 300, 100),
            causal("sm_90a", 128, 256),
            windowed(256, 448, 192),
        )
    ),
    "sm_90a one Q buffer": tuple(
        tuned(case, *ONE_BUFFER)
        for case in (done_again(causal("sm_90a", 200, 448, heads=1)), windowed(256, 448, 64))
    ),
}
