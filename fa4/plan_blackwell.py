"""Plans for Blackwell (sm_100a): roles in single warps and warpgroups, scores in tensor memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from fa4.pipeline.barriers import TMEM_DRAINED, NamedBarrier
from fa4.pipeline.edges import Edge, forward_edges
from fa4.pipeline.storage import SharedMemoryMap, shared_memory_map
from fa4.pipeline.tmem import TmemMap, tmem_map
from fa4.plan_base import BasePlan, Role, padded, require

M_TILE = 128  # rows of one query tile: the M of one tcgen05.mma, and one TMEM lane per row
N_BLOCK = 128  # keys of one block
Q_TILES = 2  # query tiles per CTA, in ping-pong

PADDED_HEAD_DIMS = (64, 96, 128, 192)
# above it tensor memory has no room: for S, P and O of two query tiles, or for S, dP, dV and dK
SQUARE_HEAD_DIM = 128
WIDE_HEAD_DIMS = (192, 128)  # the one shape above: MLA prefill


T = TypeVar("T")  # the tuning of a kind of kernel


@dataclass(frozen=True)
class BlackwellTuning:
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
# Registers: nothing spills, with the ptxas of CUDA 12.9 and with that of 13. At 64 the softmax of
# float16 needs 200 of them for that, at (192, 128) the load warp 64.
TUNED = {
    (64, 64): BlackwellTuning(6, 2, 3, 40, 96, (200, 64, 48)),
    (96, 96): BlackwellTuning(5, 1, 3, 32, 96, (192, 72, 56)),
    (128, 128): BlackwellTuning(4, 1, 3, 8, 96, (192, 72, 56)),
    (192, 128): BlackwellTuning(2, 1, 3, 8, 96, (192, 64, 64)),
}


@dataclass(frozen=True)
class BlackwellPlan(BasePlan):
    """A plan for Blackwell: two query tiles in ping-pong, each with a softmax of its own."""

    tuning: BlackwellTuning
    rescale_threshold: float  # log2 units: O is rescaled when a row maximum grew by more

    q_tiles, m_tile, n_block = Q_TILES, M_TILE, N_BLOCK
    growing = ("softmax",)
    on_demand = False  # CTA i takes the tiles i, i + grid, ...

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

    def warps_per_stage(self) -> dict[str, int]:
        """Warps of a role that act on one stage of an edge: each query tile has its own softmax."""
        return {
            name: role.warps // (Q_TILES if name == "softmax" else 1)
            for name, role in self.roles.items()
        }

    def edges(self) -> tuple[Edge, ...]:
        """The pipeline edges of this plan's kernel."""
        return forward_edges(self.tuning.kv_stages, self.tuning.o_stages)

    def named_barriers(self) -> dict[NamedBarrier, int]:
        """What the drain of tensor memory waits for."""
        return {TMEM_DRAINED: 1}

    def tmem(self) -> TmemMap:
        """Columns of tensor memory."""
        return tmem_map(N_BLOCK, self.head_dim_v)

    def notes(self) -> list[str]:
        """Where the tiles lie in tensor memory."""
        return [f"tensor memory: {self.tmem().describe()}"]

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
                "sO": self.tuning.o_stages * self.o_tile_bytes,
            },
        )

    def check(self) -> None:
        """Raise ValueError when the plan does not fit the chip or breaks a rule of its kernel."""
        super().check()
        stages, share, head = (
            getattr(self.tuning, name) for name in ("kv_stages", "exp2_emulated", "p_head")
        )
        require(
            stages >= 2,
            f"{self.name}: kv_stages={stages}; the MMA warp holds V of one block while it waits "
            "for K of the next. Take at least 2.",
        )
        require(
            share % 8 == 0 and 0 <= share <= N_BLOCK,
            f"{self.name}: exp2_emulated={share} of {N_BLOCK}; masked blocks permute chunks of "
            "32 keys, and a row's bits must not depend on that, so every chunk emulates the same "
            f"pairs. Take a multiple of 8 in 0 ... {N_BLOCK}.",
        )
        require(
            head % 32 == 0 and 0 < head <= N_BLOCK,
            f"{self.name}: p_head={head}; P is written in chunks of 32 keys. Take a multiple of "
            f"32 in 32 ... {N_BLOCK}.",
        )

    @property
    def kv_stage_bytes(self) -> int:
        """One slot of the ring that K and V share."""
        return max(self.k_block_bytes, self.v_block_bytes)


def blackwell_plan(dims: tuple[int, int], fields: dict[str, object]) -> BlackwellPlan:
    """The Blackwell plan for unpadded head dims; `fields` are the other fields of BasePlan.

    Raises ValueError for head dims without a kernel.
    """
    head_dim, head_dim_v = padded_head_dims(dims, fields["arch"])
    return BlackwellPlan(
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        # P is at most 2^8 then, far from overflow in bfloat16 (2^128) and float16 (2^16)
        rescale_threshold=8.0,
        tuning=tuned(TUNED, head_dim, head_dim_v),
        **fields,
    )


def padded_head_dims(dims: tuple[int, int], arch: str) -> tuple[int, int]:
    """What Blackwell's kernels compute head dims (of Q and K, of V) as, forward and backward.

    Raises ValueError for head dims without a kernel.
    """
    if max(dims) > SQUARE_HEAD_DIM and dims != WIDE_HEAD_DIMS:
        raise ValueError(
            f"(head_dim, head_dim_v) is {dims}; {arch} supports both at most {SQUARE_HEAD_DIM}, or "
            f"{WIDE_HEAD_DIMS}."
        )
    return padded(dims[0], PADDED_HEAD_DIMS), padded(dims[1], PADDED_HEAD_DIMS)


def tuned(table: dict[tuple[int, int], T], head_dim: int, head_dim_v: int) -> T:
    """The line of a padded pair, or that of the next larger square one."""
    larger = max(head_dim, head_dim_v)
    return table.get((head_dim, head_dim_v)) or table[larger, larger]
