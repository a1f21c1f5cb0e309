"""What a plan is on every architecture: tile shapes, sizes, and what it must fit into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fa4.pipeline.edges import Edge
from fa4.pipeline.storage import SharedMemoryMap
from fa4.problem import Problem

if TYPE_CHECKING:
    from fa4.pipeline.barriers import NamedBarrier
    from fa4.pipeline.records import IketRanges, ProbeBuffer

DTYPE_BYTES = 2  # bfloat16 and float16
WARPGROUP = 4  # warps


@dataclass(frozen=True)
class Chip:
    """What a plan must fit into. Source: CUDA programming guide, PTX ISA.

    That a chip is listed says that kernels are compiled for it, not that they have run on it.
    """

    smem_bytes: int  # per CTA
    registers: int  # per SM
    l2_bytes: int
    sms: int  # of the largest one; a smaller chip only gets another order of tiles


CHIPS = {
    "sm_90a": Chip(smem_bytes=232448, registers=65536, l2_bytes=50 << 20, sms=132),  # H100, H200
    "sm_100a": Chip(smem_bytes=232448, registers=65536, l2_bytes=126 << 20, sms=148),  # B200
    "sm_103a": Chip(smem_bytes=232448, registers=65536, l2_bytes=126 << 20, sms=160),  # B300
}


@dataclass(frozen=True)
class Role:
    """Warps [first, end) run one role with `registers` per thread."""

    first: int
    warps: int
    registers: int

    @property
    def end(self) -> int:
        """First warp after the role's."""
        return self.first + self.warps


@dataclass(frozen=True)
class BasePlan:
    """All that the compiler must know. Two calls with equal plans share one compiled kernel.

    An architecture adds its tuning, and says how many query tiles of how many rows a CTA has, how
    many keys a block, and which warps run which role.
    """

    arch: str
    dtype: str
    head_dim: int  # of Q and K in shared memory, padded to what the MMA and the swizzle need
    head_dim_v: int
    right_bound: bool  # keys right of a row's bound are hidden: causal or a right window
    left_bound: bool  # keys left of a row's bound are hidden: a left window
    softcap: bool
    # where every mbarrier wait is noted, see fa4.profile; None compiles none of it
    probe: ProbeBuffer | IketRanges | None = field(default=None, kw_only=True)

    prefix = "fa4_fwd"  # of the kernel's name
    folder = ""  # of its roles' files, in warps/
    growing = ()  # roles whose warps ask for registers, which those of the others give up
    q_tiles = m_tile = n_block = 0

    def key(self) -> str:
        """Names the compiled kernel: equal keys, equal code."""
        return repr(self)

    @property
    def name(self) -> str:
        """Entry name of the kernel, for profilers."""
        dims = f"d{self.head_dim}"
        if self.head_dim_v != self.head_dim:
            dims += f"_dv{self.head_dim_v}"
        options = {"right": self.right_bound, "left": self.left_bound, "softcap": self.softcap}
        options["probe"] = self.probe is not None
        return "_".join(
            [self.prefix, dims, self.dtype, *(name for name, on in options.items() if on)]
        )

    @property
    def roles(self) -> dict[str, Role]:
        """Warps and registers by role. setmaxnreg acts on warpgroups: 4 warps share a budget."""
        raise NotImplementedError

    def edges(self) -> tuple[Edge, ...]:
        """The pipeline edges of this plan's kernel."""
        raise NotImplementedError

    def named_barriers(self) -> dict[NamedBarrier, int]:
        """How many of each named barrier this plan's kernel has."""
        return {}

    def smem(self) -> SharedMemoryMap:
        """Offsets in shared memory."""
        raise NotImplementedError

    def warps_per_stage(self) -> dict[str, int]:
        """Warps of a role that act on one stage of an edge."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Lines about memory that the diagram adds."""
        return []

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return 32 * max(role.end for role in self.roles.values())

    @property
    def registers_at_launch(self) -> int:
        """Per thread, before setmaxnreg: equal shares of an SM's, in units of 8."""
        return CHIPS[self.arch].registers // self.threads // 8 * 8

    @property
    def cta_rows(self) -> int:
        """Query rows of one CTA's tile."""
        return self.q_tiles * self.m_tile

    @property
    def qk_tile(self) -> tuple[int, int, int]:
        """(M, N, K) of S = Q K^T."""
        return (self.m_tile, self.n_block, self.head_dim)

    @property
    def pv_tile(self) -> tuple[int, int, int]:
        """(M, N, K) of O += P V."""
        return (self.m_tile, self.head_dim_v, self.n_block)

    @property
    def q_box(self) -> tuple[int, int]:
        """(rows, columns) of a query tile."""
        return (self.m_tile, self.head_dim)

    @property
    def k_box(self) -> tuple[int, int]:
        """(rows, columns) of a key block."""
        return (self.n_block, self.head_dim)

    @property
    def v_box(self) -> tuple[int, int]:
        """(columns, rows) of a value block: V is the B operand of P V, whose N comes first."""
        return (self.head_dim_v, self.n_block)

    @property
    def o_box(self) -> tuple[int, int]:
        """(rows, columns) of an output tile."""
        return (self.m_tile, self.head_dim_v)

    @property
    def q_tile_bytes(self) -> int:
        """One query tile."""
        return self.m_tile * self.head_dim * DTYPE_BYTES

    @property
    def k_block_bytes(self) -> int:
        """One block of keys."""
        return self.n_block * self.head_dim * DTYPE_BYTES

    @property
    def v_block_bytes(self) -> int:
        """One block of values."""
        return self.n_block * self.head_dim_v * DTYPE_BYTES

    @property
    def o_tile_bytes(self) -> int:
        """One output tile."""
        return self.m_tile * self.head_dim_v * DTYPE_BYTES

    @property
    def persistent(self) -> bool:
        """Whether there are no more CTAs than SMs, each working on tile after tile."""
        return True

    @property
    def on_demand(self) -> bool:
        """Whether a tile goes to the CTA, or SM, that is free next, not to one known before."""
        return True

    @property
    def longest_first(self) -> bool:
        """Whether late tiles are longer: rows see all keys up to their own."""
        return self.right_bound and not self.left_bound

    def check(self) -> None:
        """Raise ValueError when the plan does not fit the chip or breaks a rule of its kernel."""
        for role, budget in self.roles.items():
            require(
                budget.registers % 8 == 0 and 24 <= budget.registers <= 256,
                f"{self.name}: {budget.registers} registers for {role}; setmaxnreg takes multiples "
                "of 8 from 24 to 256. Change the tuning's registers.",
            )
        nbytes = self.smem().nbytes
        require(
            nbytes <= CHIPS[self.arch].smem_bytes,
            f"{self.name}: {nbytes=} of shared memory, {CHIPS[self.arch].smem_bytes} allowed. "
            "Take fewer stages.",
        )
        self._check_registers()

    def _check_registers(self) -> None:
        """Raise ValueError for budgets that setmaxnreg cannot move the registers of a CTA to."""
        share = self.registers_at_launch
        allowed = share * self.threads  # setmaxnreg only moves what the CTA was launched with
        registers = sum(32 * role.warps * role.registers for role in self.roles.values())
        require(
            registers <= allowed,
            f"{self.name}: {registers=}, {allowed} allowed. Give some role fewer.",
        )
        for role, budget in self.roles.items():
            grows, change = role in self.growing, budget.registers - share
            action, bound = ("inc", "least") if grows else ("dec", "most")
            require(
                change >= 0 if grows else change <= 0,
                f"{self.name}: {budget.registers} registers for {role}, whose setmaxnreg.{action} "
                f"starts from {share}; at {bound} that many are allowed. Change the tuning's "
                "registers.",
            )


PlanFields = tuple[tuple[str, object], ...]
"""(name, value), hashable."""


def plan_fields(problem: Problem, arch: str) -> PlanFields:
    """The fields of BasePlan that a problem decides, but for head dims."""
    return (
        ("arch", arch),
        ("dtype", problem.dtype),
        ("right_bound", problem.window_right is not None),
        ("left_bound", problem.window_left is not None),
        ("softcap", problem.softcap > 0.0),
    )


def require(holds: bool, message: str) -> None:
    """Raise ValueError with `message` unless the rule holds."""
    if not holds:
        raise ValueError(message)


def padded(dim: int, available: tuple[int, ...]) -> int:
    """The next head dim that there are MMA shapes and swizzles for; TMA fills up with zeros."""
    return next(size for size in available if size >= dim)
