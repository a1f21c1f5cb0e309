"""The few numbers that are compared between kernels."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.plan_blackwell import BlackwellPlan
from fa4.profile.pipes import Step, step
from fa4.profile.static import Analysis, LoopReport

MMAS = 32  # tcgen05.mma of one 256x128 step at head dim 128, K = 16 each


@dataclass(frozen=True)
class Softmax:
    """Softmax loop per warp and 128 keys, split as in the table of static anchors.

    instructions: static; executed: shortest and longest path. packed: FFMA2 + FADD2. max: FMNMX
    and FMNMX3. select: FSEL and SEL.
    """

    instructions: float
    executed: tuple[float, float]
    ex2: float
    emulated: float
    packed: float
    max: float
    select: float
    f2fp: float
    tmem_loads: float
    tmem_stores: float


@dataclass(frozen=True)
class Summary:
    """One kernel. mma_per_32: static instructions of the MMA loop per 32 MMAs; correction: of its
    loop, both query tiles. None: there is no such loop. step: modelled, see `pipes`.
    """

    registers: int
    stack: int
    spills: int
    unmasked: Softmax | None
    masked: Softmax | None
    mma_per_32: float | None
    mma_executed_per_32: float | None
    correction: float | None
    step: Step | None


def summarise(analysis: Analysis, plan: BlackwellPlan) -> Summary:
    """The numbers of a forward kernel with the head dims, tiles and roles of `plan`."""
    loops = analysis.loops_of("softmax")
    innermost = sorted(analysis.loops_of("mma"), key=lambda loop: -loop.depth)
    mma = innermost[0] if innermost else None
    correction = next(iter(analysis.loops_of("correction")), None)
    both = _both_tiles(correction, plan) if correction else None
    modelled = None
    if loops and correction:
        softmax = {pipe: n / loops[0].blocks for pipe, n in loops[0].counts.pipes.items()}
        rescale = {pipe: n * both for pipe, n in correction.counts.pipes.items()}
        modelled = step(plan, softmax, rescale)
    return Summary(
        registers=analysis.resources.registers,
        stack=analysis.resources.stack,
        spills=analysis.resources.local_loads + analysis.resources.local_stores,
        unmasked=softmax_row(loops[0]) if loops else None,
        masked=softmax_row(loops[-1]) if len(loops) > 1 else None,
        mma_per_32=mma.counts.instructions * MMAS / mma.counts.mma if mma else None,
        mma_executed_per_32=mma.shortest * MMAS / mma.counts.mma if mma else None,
        correction=correction.counts.instructions * both if correction else None,
        step=modelled,
    )


def softmax_row(loop: LoopReport) -> Softmax:
    """A softmax loop, per 128 keys."""
    counts, blocks = loop.counts, loop.blocks
    return Softmax(
        instructions=counts.instructions / blocks,
        executed=(loop.shortest / blocks, loop.longest / blocks),
        ex2=counts.ex2 / blocks,
        emulated=counts.emulated / blocks,
        packed=counts.packed / blocks,
        max=counts.max / blocks,
        select=counts.select / blocks,
        f2fp=counts.f2fp / blocks,
        tmem_loads=counts.tmem[0] / blocks,
        tmem_stores=counts.tmem[1] / blocks,
    )


def _both_tiles(correction: LoopReport, plan: BlackwellPlan) -> float:
    """Factor from one iteration to both query tiles: a tile is head_dim_v / 2 packed products."""
    tiles = correction.counts.classes["FMUL2"] / (plan.head_dim_v / 2)
    return plan.q_tiles / tiles
