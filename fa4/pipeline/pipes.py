"""Edges inside the kernel: mbarriers at the places of the shared-memory map.

`wait` and `release` belong to the consumer of an edge, `acquire` and `commit` to its producer.
Which role calls is known while the kernel is traced, so calls by another role, and edges that
somebody forgot, are refused then: on hardware they would be a hang.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import tcgen05

from fa4.pipeline.check import Ledger
from fa4.pipeline.edges import Edge, Kind
from fa4.pipeline.probe import IketProbe, Probe, make_probe
from fa4.plan_base import BasePlan


@dataclass(frozen=True)
class Pipe:
    """One edge as seen by one role. `stage` selects the mbarrier, `phase` is its parity."""

    edge: Edge
    full: cute.Pointer
    empty: cute.Pointer | None
    role: str
    ledger: Ledger
    probe: Probe | IketProbe | None = None  # notes every mbarrier wait, if profiled

    def wait(self, stage: Int32 | int, phase: Int32, fenced: bool = True) -> None:
        """Consumer: block until the stage was filled in this phase.

        `fenced` False: another wait of the role, with its fence, comes before tensor memory does.
        """
        self._allowed("wait", self.edge.consumer)
        self._block(self.full + stage, phase, self.edge.name)
        if self.edge.orders_tmem and fenced:
            cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")

    def acquire(self, stage: Int32 | int, phase: Int32) -> None:
        """Producer: block until the consumer handed the stage back (at once the first time)."""
        self._allowed("acquire", self.edge.producer)
        self._block(self.empty + stage, phase ^ 1, f"{self.edge.name} released")

    def expect(self, stage: Int32 | int, nbytes: int) -> cute.Pointer:
        """Producer of a TMA edge: announce the bytes; returns the mbarrier that copies complete."""
        self._allowed("expect", self.edge.producer)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.full + stage, nbytes)
        return self.full + stage

    def commit(self, stage: Int32 | int) -> None:
        """Producer: fill the stage, for this warp. tcgen05.commit is its own fence."""
        self._allowed("commit", self.edge.producer)
        if self.edge.orders_tmem and self.edge.kind is Kind.WARPS:
            cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")
        self._arrive(self.full + stage, self.edge.kind is Kind.UMMA)

    def release(self, stage: Int32 | int) -> None:
        """Consumer: hand the stage back, for this warp."""
        self._allowed("release", self.edge.consumer)
        self._arrive(self.empty + stage, self.edge.released_by == "commit")

    def _block(self, mbarrier: cute.Pointer, phase: Int32, name: str) -> None:
        begin = self.probe.begin(name) if self.probe else None
        cute.arch.mbarrier_wait(mbarrier, phase)
        if self.probe:
            self.probe.end(begin, mbarrier)

    def _arrive(self, mbarrier: cute.Pointer, after_mma: bool) -> None:
        if after_mma:
            tcgen05.commit(mbarrier)  # by the one thread that issued the MMAs
        else:
            # One arrival stands for the warp: its lanes must have done their part before.
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(mbarrier)

    def _allowed(self, action: str, role: str) -> None:
        self.ledger.note(self.edge, action, by=self.role, belongs_to=role)


class PipeSet:
    """All edges of a kernel by name; subclasses are frozen dataclasses with a field per edge."""

    def seen_by(self, role: str) -> PipeSet:
        """The same edges, bound to the role that is about to be traced."""
        pipes = vars(self)
        probe = next(iter(pipes.values())).probe
        own = {"role": role, "probe": probe.start() if probe else None}
        return type(self)(**{name: replace(pipe, **own) for name, pipe in pipes.items()})


@dataclass(frozen=True)
class Pipes(PipeSet):
    """Edges of the Blackwell forward kernel."""

    q_loaded: Pipe
    kv_loaded: Pipe
    s_computed: Pipe
    scale_written: Pipe
    o_rescaled: Pipe
    p_written: Pipe
    p_tail_written: Pipe
    total_written: Pipe
    o_accumulated: Pipe
    o_written: Pipe


@dataclass(frozen=True)
class HopperPipes(PipeSet):
    """Edges of the Hopper forward kernel."""

    tile_assigned: Pipe
    q_loaded: Pipe
    k_loaded: Pipe
    v_loaded: Pipe


@dataclass(frozen=True)
class BackwardPipes(PipeSet):
    """Edges of the Blackwell backward kernel."""

    k_loaded: Pipe
    v_loaded: Pipe
    q_loaded: Pipe
    do_loaded: Pipe
    rows_loaded: Pipe
    s_computed: Pipe
    p_written: Pipe
    dp_computed: Pipe
    ds_written: Pipe
    dq_computed: Pipe
    dq_read: Pipe
    gradients_computed: Pipe
    gradients_read: Pipe


@dataclass(frozen=True)
class HopperBackwardPipes(PipeSet):
    """Edges of the Hopper backward kernel."""

    tile_assigned: Pipe
    dq_assigned: Pipe
    k_loaded: Pipe
    v_loaded: Pipe
    q_loaded: Pipe
    do_loaded: Pipe
    ds_written: Pipe
    dq_written: Pipe


def build_pipes(plan: BasePlan, kind: type[PipeSet], smem: cute.Pointer, ledger: Ledger) -> PipeSet:
    """Pointers to each edge's mbarriers in the shared memory that starts at `smem`.

    Raises ValueError unless `kind` has a field for every edge of the plan and for nothing else.
    """
    _check_fields(plan, kind)
    smem_map = plan.smem()
    probe = make_probe(plan.probe, smem)

    def at(offset: int | None) -> cute.Pointer | None:
        return None if offset is None else cute.recast_ptr(smem + offset, dtype=Int64)

    return kind(
        **{
            edge.name: Pipe(
                edge=edge,
                full=at(smem_map.full[edge.name]),
                empty=at(smem_map.empty.get(edge.name)),
                role="nobody",
                ledger=ledger,
                probe=probe,
            )
            for edge in plan.edges()
        }
    )


def _check_fields(plan: BasePlan, kind: type[PipeSet]) -> None:
    found = {field.name for field in fields(kind)}
    edges = {edge.name for edge in plan.edges()}
    place = f"class {kind.__name__} of fa4/pipeline/pipes.py"
    if missing := sorted(edges - found):
        raise ValueError(
            f"{plan.name} has edges {missing} that {place} has no field for: add one for each"
        )
    if left := sorted(found - edges):
        raise ValueError(
            f"{place} has fields {left} that are no edges of {plan.name}: remove them, or add "
            "these edges to fa4/pipeline/edges.py"
        )


def init_barriers(pipes: PipeSet, plan: BasePlan) -> None:
    """Set every arrive count; for one thread. A fence and a CTA barrier must follow."""
    warps = plan.warps_per_stage()
    for pipe in vars(pipes).values():
        for stage in range(pipe.edge.stages):
            cute.arch.mbarrier_init(pipe.full + stage, pipe.edge.arrive_count(warps))
            if pipe.empty is not None:
                releases = pipe.edge.release_count(warps, plan.q_tiles)
                cute.arch.mbarrier_init(pipe.empty + stage, releases)
