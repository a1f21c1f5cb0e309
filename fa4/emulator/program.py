"""A kernel as translated from PTX, and the values that a run takes and returns.

program = Program.from_ptx(ptx, entry)
memory = GlobalMemory()
memory.add(tensor.data_ptr(), nbytes, "q")
stats = program.run(Launch(grid, block, cluster, smem_bytes, params), memory, Schedule())
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from .errors import LaunchError

if TYPE_CHECKING:
    import numpy as np

    from .checker.findings import Finding
    from .labels import Labels
    from .memory import GlobalMemory
    from .observe import Observer
    from .translate.unit import Translation

Dim3 = tuple[int, int, int]
KINDS = ("early", "late", "random", "priority")


@dataclass(frozen=True)
class Param:
    """One kernel parameter: `size`, `align` and `offset` in bytes of the parameter block."""

    name: str
    size: int
    align: int
    offset: int


class Touched(NamedTuple):
    """Addresses of the words of global memory that a grid wrote, and of those that it read."""

    written: np.ndarray
    read: np.ndarray


@dataclass(frozen=True)
class Launch:
    """What a launch call passes. `params` is the parameter block laid out as `Program.params`.

    `registers_per_thread` is the register count at launch (the pool of setmaxnreg); None takes
    it from the kernel's `.maxnreg` or `.reqntid` and `.minnctapersm` directives.
    `sm_count` is what `%nsmid` answers. `unordered`: what a grid touched which may not have ended
    yet, for a checked run.
    """

    grid: Dim3
    block: Dim3
    cluster: Dim3
    smem_bytes: int
    params: bytes
    registers_per_thread: int | None = None
    sm_count: int = 148
    unordered: Touched | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for axis in range(3):
            if self.grid[axis] < 1 or self.block[axis] < 1 or self.cluster[axis] < 1:
                raise LaunchError(
                    f"grid {self.grid}, block {self.block} and cluster {self.cluster} must be "
                    "positive in every dimension"
                )
            if self.grid[axis] % self.cluster[axis]:
                raise LaunchError(f"grid {self.grid} is no multiple of cluster {self.cluster}")
        if self.threads > 1024:
            raise LaunchError(f"block {self.block} has {self.threads} threads; at most 1024")

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_size(self) -> int:
        """CTAs of one cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


@dataclass(frozen=True)
class Schedule:
    """Order of warps and of asynchronous effects (TMA, tensor core, bulk copies, TMEM stores).

    `early`: effects at issue, warps in turn.  `late`: effects only when every warp is blocked.
    `random`: any runnable warp or effect.  `priority`: strict random priorities per warp and per
    asynchronous engine, changed at a few random moments (probabilistic concurrency testing).
    A run is a function of (kind, seed); `early` and `late` ignore the seed.

    resident: how many clusters run side by side. `early`: in turn, `late`: the newest that can,
    else as the seed says. None: one after another, unless one polls global memory.
    """

    kind: Literal["early", "late", "random", "priority"] = "early"
    seed: int = 0
    resident: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"schedule={self.kind!r} is unknown; use one of {KINDS}")
        if self.resident is None:
            return
        if isinstance(self.resident, bool) or not isinstance(self.resident, int):
            raise TypeError(f"resident={self.resident!r}: a number of clusters (an int), or None")
        if self.resident < 1:
            raise ValueError(f"resident={self.resident}: at least one cluster must run, or None")


@dataclass
class RunStats:
    """Counts of one launch.

    `by_role`: warp-instructions per role (or `warp i` without labels). `by_line`: the same per
    (source file, line), for PTX with line info. `mmas`: tcgen05.mma or wgmma instructions.
    `findings` and `remarks` are what a checked run has to say: faults, and what is none in
    practice though the PTX ISA does not promise it. `touched`: for a launch that may begin before
    this one has ended, of a checked run.
    """

    warp_instructions: int = 0
    seconds: float = 0.0
    mmas: int = 0
    by_role: dict[str, int] = field(default_factory=dict)
    by_line: dict[tuple[str, int], int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    touched: Touched | None = field(default=None, repr=False, compare=False)


class Program:
    """One translated kernel. Use `from_ptx`: translations are cached per PTX text and entry."""

    def __init__(self, ptx: str, entry: str) -> None:
        from .ptx.parser import parse
        from .translate.unit import Translation

        self.kernel = parse(ptx, entry)
        self.translation = Translation(self.kernel)
        self._checked: Translation | None = None

    @staticmethod
    def from_ptx(ptx: str, entry: str) -> Program:
        """Parses kernel `entry` of a PTX module. Raises PtxSyntaxError."""
        return _cached(ptx, entry)

    @property
    def params(self) -> tuple[Param, ...]:
        """The kernel's parameters in order, with their place in `Launch.params`."""
        return self.kernel.params

    def checked(self) -> Translation:
        """The translation whose code also tells the checker about fences and places."""
        from .translate.unit import Translation

        if self._checked is None:
            self._checked = Translation(self.kernel, checked=True)
        return self._checked

    def run(
        self,
        launch: Launch,
        memory: GlobalMemory,
        schedule: Schedule,
        labels: Labels | None = None,
        observer: Observer | None = None,
        check: bool = False,
    ) -> RunStats:
        """Runs a whole grid to its end. Raises EmulatorError and its subclasses.

        check: also look for races and for wrong use of barriers, see the findings of the result.
        """
        from .machine import Machine

        return Machine(self, launch, memory, schedule, labels, (observer, check)).run()


@lru_cache(maxsize=256)
def _cached(ptx: str, entry: str) -> Program:
    return Program(ptx, entry)
