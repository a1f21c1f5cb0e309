"""The checker of a launch and of each of its clusters; see the package's docstring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..checks import early_reads
from ..tensor_memory import COLUMNS
from .barrier_checks import BarrierChecks, MbarrierCarrier
from .clocks import GENERIC, Clocks
from .copy_checks import CopyChecks
from .fence_checks import FenceChecks
from .findings import Finding
from .global_checks import GlobalChecks, GlobalShadow
from .location_checks import ClusterOrder, LocationChecks
from .memory_checks import MemoryChecks, Strength, strength_of
from .naming import Naming
from .records import Records
from .shadow import Shadow
from .tensor_checks import HALVES, TensorChecks

if TYPE_CHECKING:
    from ..cta import Cta
    from ..labels import Labels
    from ..machine import Cluster
    from ..memory import GlobalMemory
    from ..program import Program
    from ..team import Team


UNORDERED_SUMS = "floats are added to memory in no fixed order: the sum may differ by run"
_FLOATS = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f64"}


class Rules:
    """What a kernel is held to, by the instructions it has.

    A kernel without any tcgen05.fence, or any tcgen05.wait::ld, leaves that order to ptxas, and
    its barriers alone, or its loads as such, count as ordered. That is a remark.
    """

    def __init__(self, program: Program) -> None:
        instructions = program.kernel.instructions
        opcodes = [instruction.opcode for instruction in instructions]
        loads = any(opcode.startswith("tcgen05.ld") for opcode in opcodes)
        self.tensor_fences = any(opcode.startswith("tcgen05.fence") for opcode in opcodes)
        self.load_waits = any(opcode.startswith("tcgen05.wait::ld") for opcode in opcodes)
        self._strengths = [strength_of(instruction.parts) for instruction in instructions]
        self._overwriting = ["exch" in instruction.parts for instruction in instructions]
        self._sums = [_adds_floats(instruction.parts) for instruction in instructions]
        self.relaxed = ["relaxed" in instruction.parts for instruction in instructions]
        self.remarks: list[str] = []
        if loads and not self.tensor_fences:
            self.remarks.append(
                "no tcgen05.fence in the kernel: the order of tensor memory between threads rests "
                "on barriers alone, which the PTX ISA does not promise"
            )
        if loads and not self.load_waits:
            self.remarks.append(
                "no tcgen05.wait::ld in the kernel: every tcgen05.ld is taken to be over at once"
            )
        early = early_reads(program) if self.load_waits else []
        self.remarks.extend(f"register in use before its load is waited for: {r}" for r in early)

    def strength(self, site: int) -> Strength:
        return self._strengths[site]

    def overwrites(self, site: int) -> bool:
        """Whether an atomic leaves behind a value that does not depend on the old one."""
        return self._overwriting[site]

    def sums(self, site: int) -> bool:
        """Whether it adds floats to memory, so that the order of several matters."""
        return self._sums[site]


def _adds_floats(parts: tuple[str, ...]) -> bool:
    reduces = parts[0] in ("red", "atom", "multimem") or parts[:2] == ("cp", "reduce")
    return reduces and "add" in parts and not _FLOATS.isdisjoint(parts)


@lru_cache(maxsize=64)
def rules_of(program: Program) -> Rules:
    """The rules for a program, worked out once."""
    return Rules(program)


@dataclass
class ClusterNames:
    """What remains of a cluster for reports: where its CTAs are, what its actors are called."""

    positions: list[tuple[int, int, int]]
    actors: list[tuple]


class LaunchChecker:
    """Findings and remarks of one launch, and what its clusters share."""

    def __init__(self, program: Program, labels: Labels | None, memory: GlobalMemory) -> None:
        self.program, self.labels = program, labels
        self.rules = rules_of(program)
        self.clusters: list[ClusterNames] = []
        self.running: dict[int, ClusterChecker] = {}
        self.order = ClusterOrder()
        self.global_shadow = GlobalShadow(memory, self._report_global)
        self.findings: dict[tuple, Finding] = {}
        self.remarks = dict.fromkeys(self.rules.remarks)

    def add(self, key: tuple, make: Callable[[], Finding]) -> None:
        """Counts a finding; `make` words it the first time."""
        finding = self.findings.get(key)
        if finding is None:
            self.findings[key] = make()
        else:
            finding.count += 1

    def role(self, warp: int) -> str:
        """Role of a warp of any CTA."""
        return self.labels.role(warp) if self.labels else f"warp {warp}"

    def _report_global(self, kind: str, old: np.ndarray, new: np.ndarray) -> None:
        cluster = int(self.global_shadow.records.cluster[new[0]])
        self.running[cluster].report("global memory", kind, old, new)


class ClusterChecker:
    """Clocks, records and shadow memories of a cluster; the engine calls its parts."""

    def __init__(self, launch: LaunchChecker, cluster: Cluster) -> None:
        self.launch, self.cluster, self.rules = launch, cluster, launch.rules
        self.per_cta = len(cluster.ctas[0].warps)
        self.clocks, self.records = Clocks(self.per_cta * len(cluster.ctas)), Records()
        self.number = len(launch.clusters)
        positions = [cta.position for cta in cluster.ctas]
        launch.clusters.append(ClusterNames(positions, self.clocks.names))
        launch.running[self.number] = self
        self.shared = [
            Shadow(-(-cta.shared.end // 4), 4, self._reporter("shared memory"))
            for cta in cluster.ctas
        ]
        self._tensor: dict[int, Shadow] = {}
        # by barrier, the latest signal of an engine: phase, site, warp, whether a copy
        self.signals: dict[MbarrierCarrier, tuple[int, int, int, bool]] = {}
        self.naming = Naming(self)
        self.barriers, self.fences = BarrierChecks(self), FenceChecks(self)
        self.copies, self.tensor = CopyChecks(self), TensorChecks(self)
        self.memory, self.locations = MemoryChecks(self), LocationChecks(self)
        self.globals = GlobalChecks(self, launch.global_shadow, self.number)

    def tensor_memory(self, cta: Cta) -> Shadow:
        """The shadow of a CTA's tensor memory."""
        if cta.rank not in self._tensor:
            self._tensor[cta.rank] = Shadow(
                COLUMNS * HALVES, HALVES, self._reporter("tensor memory")
            )
        return self._tensor[cta.rank]

    # ---- warps

    def warp_slots(self, w: Team) -> list[int]:
        """The warps of a team, numbered over the cluster."""
        slots = w.cache.get("slots")
        if slots is None:
            first = w.cta.rank * self.per_cta
            slots = w.cache["slots"] = [first + warp.index for warp in w.warps]
            w.cache["lane slots"] = np.repeat(slots, 32)
        return slots

    def lanes(self, w: Team) -> np.ndarray:
        """The warp of each lane of a team."""
        self.warp_slots(w)
        return w.cache["lane slots"]

    def slots(self, w: Team, mask: np.ndarray | None) -> list[int]:
        """The warps with active lanes."""
        slots = self.warp_slots(w)
        if mask is None or len(slots) == 1:
            return slots
        return [slots[p] for p in np.flatnonzero(mask.reshape(-1, 32).any(1)).tolist()]

    def slot(self, w: Team, lane: int) -> int:
        """The warp of a lane of a team."""
        return self.warp_slots(w)[lane // 32]

    def who(self, slot: int) -> str:
        """Role and number of a warp."""
        return self.naming.who(slot)

    def of_warp(self, slot: int, site: int, kind: tuple) -> int:
        """The record of an access that a warp does itself."""
        own = int(self.clocks.own[slot])
        step = int(self.clocks.warps[slot, GENERIC, own])
        return self.records.of_warp(slot, site, own, step, kind)

    def is_relaxed(self, site: int) -> bool:
        return self.rules.relaxed[site]

    def known_to_all(self) -> np.ndarray:
        """What some warp of the cluster knows, by actor."""
        return self.clocks.warps[:, GENERIC].max(0)

    # ---- findings

    def _reporter(self, memory: str):
        return lambda kind, old, new: self.report(memory, kind, old, new)

    def report(self, memory: str, kind: str, old: np.ndarray, new: np.ndarray) -> None:
        """Cells in which an access `new` is not ordered behind `old`."""
        records = self.globals.records if memory == "global memory" else self.records
        if kind != "unwritten":
            harmless = records.strong[old] & records.strong[new]
            self._remark_sums(records, old[harmless], new[harmless])
            harmless |= records.narrow[old] & records.narrow[new]
            old, new = old[~harmless], new[~harmless]
        for first, second in sorted(set(zip(old.tolist(), new.tolist(), strict=True))):
            self.naming.race((memory, records), kind, first, second)

    def _remark_sums(self, records: Records, old: np.ndarray, new: np.ndarray) -> None:
        """Of accesses that need no order, those whose order changes the result."""
        for first, second in sorted(set(zip(old.tolist(), new.tolist(), strict=True))):
            sites = [int(records.site[number]) for number in (first, second)]
            if all(map(self.rules.sums, sites)):
                self.remark(int(records.slot[second]), sites[1], UNORDERED_SUMS)

    def misuse(self, w: Team, slot: int, message: str) -> None:
        """A fault of the instruction that is being executed."""
        self.misuse_at(slot, w.at, message)

    def misuse_at(self, slot: int, site: int, message: str) -> None:
        """A fault of an instruction."""
        key = ("misuse", site, message)
        access = self.naming.access(slot, site)
        self.launch.add(key, lambda: Finding("misuse", message, None, access))

    def remark(self, slot: int, site: int, message: str) -> None:
        """Something that is no fault in practice, though the PTX ISA does not promise it."""
        instruction = self.launch.program.kernel.instructions[site]
        text = f"{message}, by {self.who(slot)} at PTX line {instruction.line}"
        self.launch.remarks[text] = None

    def check_exit(self) -> None:
        """At the end of the cluster."""
        self.copies.check_exit()
        self.tensor.check_exit()
        self.tensor.check_wgmma_exit()
        self.barriers.check_exit()
        del self.launch.running[self.number]
