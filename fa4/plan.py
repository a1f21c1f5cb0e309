"""Problem -> Plan: every choice of tiles, stages, warps, registers and memory. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from fa4.pipeline.edges import Edge, forward_edges
from fa4.pipeline.storage import SharedMemoryMap, shared_memory_map
from fa4.pipeline.tmem import TmemMap, tmem_map
from fa4.problem import Problem

DTYPE_BYTES = 2  # bfloat16 and float16

M_TILE = 128  # rows of one query tile: the M of one tcgen05.mma, and one TMEM lane per row
N_BLOCK = 128  # keys of one block
Q_TILES = 2  # query tiles per CTA, in ping-pong

PADDED_HEAD_DIMS = (64, 96, 128, 192)


@dataclass(frozen=True)
class Chip:
    """What a plan must fit into. Source: CUDA programming guide, PTX ISA."""

    smem_bytes: int  # per CTA
    registers: int  # per SM
    l2_bytes: int


CHIPS = {
    "sm_100a": Chip(smem_bytes=232448, registers=65536, l2_bytes=126 << 20),  # B200
    "sm_103a": Chip(smem_bytes=232448, registers=65536, l2_bytes=126 << 20),  # B300
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
class Tuning:
    """Choices per head dim that only speed depends on; see TUNED for the reasons."""

    kv_stages: int
    o_stages: int
    exp2_degree: int
    exp2_emulated: int  # of the 128 exponentials of a row and block, how many run on FMA units
    p_head: int  # keys of P whose writing lets P V start
    registers: tuple[int, int, int]  # per thread: softmax, correction, the other warps


# (head dim of Q and K, of V), both padded. At 128 and (192, 128) Q, the K/V ring and O staging fill
# shared memory, which decides kv_stages; at 64 and 96 more slots would fit.
# exp2_emulated balances MUFU against issue slots by instruction counts (bench/results/
# exp2_share.json has them for every share): at head dims 64 and 96 MUFU is the longest pipe, at 128
# and more the tensor core is, and each emulated exponential only costs issue slots.
TUNED = {
    (64, 64): Tuning(6, 2, 3, 40, 96, (192, 72, 56)),
    (96, 96): Tuning(5, 1, 3, 32, 96, (192, 72, 56)),
    (128, 128): Tuning(4, 1, 3, 8, 96, (192, 72, 56)),
    (192, 128): Tuning(2, 1, 3, 8, 96, (192, 72, 56)),
}


@dataclass(frozen=True)
class Plan:
    """All that the compiler must know. Two calls with equal plans share one compiled kernel."""

    arch: str
    dtype: str
    head_dim: int  # of Q and K in shared memory, padded to what the MMA and the swizzle need
    head_dim_v: int
    right_bound: bool  # keys right of a row's bound are hidden: causal or a right window
    left_bound: bool  # keys left of a row's bound are hidden: a left window
    softcap: bool
    rescale_threshold: float  # log2 units: O is rescaled when a row maximum grew by more; 0 always
    tuning: Tuning

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
        return "_".join(
            ["fa4_fwd", dims, self.dtype, *(name for name, on in options.items() if on)]
        )

    @property
    def roles(self) -> dict[str, Role]:
        """Warps and registers by role. setmaxnreg acts on warpgroups: 4 warps share a budget."""
        softmax, correction, others = self.tuning.registers
        return {
            "softmax": Role(0, 8, softmax),
            "correction": Role(8, 4, correction),
            "mma": Role(12, 1, others),
            "load": Role(13, 1, others),
            "epilogue": Role(14, 1, others),
            "idle": Role(15, 1, others),
        }

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return 32 * self.roles["idle"].end

    def warps_per_stage(self) -> dict[str, int]:
        """Warps of a role that act on one stage of an edge: each query tile has its own softmax."""
        return {
            name: role.warps // (Q_TILES if name == "softmax" else 1)
            for name, role in self.roles.items()
        }

    def edges(self) -> tuple[Edge, ...]:
        """The pipeline edges of this plan's kernel."""
        return forward_edges(self.tuning.kv_stages, self.tuning.o_stages)

    def tmem(self) -> TmemMap:
        """Columns of tensor memory."""
        return tmem_map(N_BLOCK, self.head_dim_v)

    def smem(self) -> SharedMemoryMap:
        """Offsets in shared memory."""
        row_floats = Q_TILES * M_TILE * 4
        return shared_memory_map(
            self.edges(),
            {
                "tmem_address": 4,
                "sScale": row_floats,
                "sRowSum": row_floats,
                "sQ": Q_TILES * self.q_tile_bytes,
                "sKV": self.tuning.kv_stages * self.kv_stage_bytes,
                "sO": self.tuning.o_stages * M_TILE * self.head_dim_v * DTYPE_BYTES,
            },
        )

    @property
    def qk_tile(self) -> tuple[int, int, int]:
        """(M, N, K) of S = Q K^T."""
        return (M_TILE, N_BLOCK, self.head_dim)

    @property
    def pv_tile(self) -> tuple[int, int, int]:
        """(M, N, K) of O += P V."""
        return (M_TILE, self.head_dim_v, N_BLOCK)

    @property
    def q_box(self) -> tuple[int, int]:
        """(rows, columns) of a query tile."""
        return (M_TILE, self.head_dim)

    @property
    def k_box(self) -> tuple[int, int]:
        """(rows, columns) of a key block."""
        return (N_BLOCK, self.head_dim)

    @property
    def v_box(self) -> tuple[int, int]:
        """(columns, rows) of a value block: V is the B operand of P V, whose N comes first."""
        return (self.head_dim_v, N_BLOCK)

    @property
    def o_box(self) -> tuple[int, int]:
        """(rows, columns) of an output tile."""
        return (M_TILE, self.head_dim_v)

    @property
    def q_tile_bytes(self) -> int:
        """One query tile."""
        return M_TILE * self.head_dim * DTYPE_BYTES

    @property
    def k_block_bytes(self) -> int:
        """One block of keys."""
        return N_BLOCK * self.head_dim * DTYPE_BYTES

    @property
    def v_block_bytes(self) -> int:
        """One block of values."""
        return N_BLOCK * self.head_dim_v * DTYPE_BYTES

    @property
    def kv_stage_bytes(self) -> int:
        """One slot of the ring that K and V share."""
        return max(self.k_block_bytes, self.v_block_bytes)

    def check(self) -> None:
        """Raise ValueError when the plan does not fit the chip."""
        chip = CHIPS[self.arch]
        nbytes = self.smem().nbytes
        if nbytes > chip.smem_bytes:
            raise ValueError(f"{self.name}: {nbytes=} of shared memory, {chip.smem_bytes} allowed")
        registers = sum(32 * role.warps * role.registers for role in self.roles.values())
        if registers > chip.registers:
            raise ValueError(f"{self.name}: {registers=}, {chip.registers} allowed")


def plan_forward(problem: Problem, arch: str = "sm_100a") -> Plan:
    """The plan for a problem; depends on head dims, dtype and the kind of mask only.

    Raises ValueError for an architecture without a kernel.
    """
    if arch not in CHIPS:
        raise ValueError(f"{arch=} has no forward kernel; available: {', '.join(CHIPS)}")
    return _plan_forward(
        arch,
        problem.dtype,
        (problem.head_dim, problem.head_dim_v),
        problem.window_right is not None,
        problem.window_left is not None,
        problem.softcap > 0.0,
    )


@cache
def _plan_forward(
    arch: str, dtype: str, dims: tuple[int, int], right: bool, left: bool, softcap: bool
) -> Plan:
    head_dim, head_dim_v = (_padded(dim) for dim in dims)
    plan = Plan(
        arch=arch,
        dtype=dtype,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        right_bound=right,
        left_bound=left,
        softcap=softcap,
        # P is at most 2^8 then, far from overflow in bfloat16 (2^128) and float16 (2^16)
        rescale_threshold=8.0,
        tuning=tuning(head_dim, head_dim_v),
    )
    plan.check()
    return plan


def _padded(dim: int) -> int:
    """The next head dim that there are MMA shapes and swizzles for; TMA fills up with zeros."""
    return next(padded for padded in PADDED_HEAD_DIMS if padded >= dim)


def tuning(head_dim: int, head_dim_v: int) -> Tuning:
    """The tuned line of a padded pair, or that of the next larger square one."""
    larger = max(head_dim, head_dim_v)
    return TUNED.get((head_dim, head_dim_v)) or TUNED[(larger, larger)]
