"""Plans for the backward pass on Hopper (sm_90a): dK and dV of a key block stay in registers."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.pipeline.barriers import GRADIENTS_WRITTEN, NamedBarrier
from fa4.pipeline.edges import Edge, hopper_backward_edges
from fa4.pipeline.storage import SharedMemoryMap, shared_memory_map
from fa4.plan_backward_base import FLOAT_BYTES, BackwardPlan
from fa4.plan_base import DTYPE_BYTES, WARPGROUP, Role, padded, require
from fa4.plan_hopper import PADDED_HEAD_DIMS, ROWS, SLOT_WORDS, SLOTS

DS_STAGES = 2


@dataclass(frozen=True)
class HopperBackwardTuning:
    """Choices that only speed depends on; see TUNED for the reasons.

    columns_split: False: a warpgroup has 64 keys of its own, and P and dS reach dV and dK in
        registers. True: all warpgroups share 64 keys; of S and dP each takes some queries, of dV,
        dK and dQ some columns, and P and dS go through shared memory.
    dq_columns: dQ is computed in tiles of 64 rows and so many columns, one per warpgroup.
    """

    warpgroups: int
    m_block: int  # queries per block
    columns_split: bool
    dq_columns: int
    stages: int  # of Q and dO
    scores_ahead: bool  # S of the next block is computed before dQ of this one is stored
    rounded_p: bool  # dS takes the P that dV takes, which frees the registers of the exact one
    registers: tuple[int, int]  # per thread: compute, the other warps


# Shared memory and the accumulators decide: at head dims up to 128 dK and dV of 64 keys fit in a
# warpgroup's registers; above, half of their columns do. Figures: in
# bench/results/hopper_backward_tried.md.
TUNED = {
    (64, 64): HopperBackwardTuning(2, 128, False, 64, 2, False, True, (232, 40)),
    (96, 96): HopperBackwardTuning(2, 64, False, 48, 2, False, True, (232, 40)),
    (128, 128): HopperBackwardTuning(2, 64, False, 64, 2, False, True, (232, 40)),
    (192, 128): HopperBackwardTuning(2, 64, True, 96, 2, True, False, (232, 40)),
    (192, 192): HopperBackwardTuning(2, 64, True, 96, 1, False, False, (232, 40)),
    (256, 256): HopperBackwardTuning(2, 64, True, 128, 1, False, False, (232, 40)),
}

# The slope of tanh goes into the exact P, so that one cannot be given up.
TUNED_SOFTCAP = {
    **TUNED,
    (64, 64): HopperBackwardTuning(2, 64, False, 32, 2, False, False, (232, 40)),
    (96, 96): HopperBackwardTuning(2, 64, False, 48, 2, False, False, (232, 40)),
    (128, 128): HopperBackwardTuning(2, 64, False, 64, 2, False, False, (232, 40)),
}


@dataclass(frozen=True)
class HopperBackwardPlan(BackwardPlan):
    """A plan for Hopper: warps that load and reduce, and warpgroups that compute."""

    tuning: HopperBackwardTuning

    folder = "hopper/backward/"
    growing = ("compute",)

    @property
    def m_tile(self) -> int:
        """Queries of one block."""
        return self.tuning.m_block

    @property
    def n_block(self) -> int:
        """Keys of one work tile."""
        return ROWS * self.key_tiles

    @property
    def key_tiles(self) -> int:
        """Blocks of 64 keys of one work tile."""
        return 1 if self.tuning.columns_split else self.tuning.warpgroups

    @property
    def key_rows(self) -> int:
        """Keys of one tile in shared memory."""
        return ROWS

    @property
    def parts(self) -> int:
        """Into how many parts the warpgroups split queries (of S, dP) and columns (of dV, dK)."""
        return self.tuning.warpgroups if self.tuning.columns_split else 1

    @property
    def scores_tile(self) -> tuple[int, int]:
        """(keys, queries) of a warpgroup's part of S^T and dP^T."""
        return (ROWS, self.m_tile // self.parts)

    @property
    def scores_per_thread(self) -> int:
        """Of a block."""
        keys, queries = self.scores_tile
        return keys * queries // (32 * WARPGROUP)

    @property
    def dk_tile(self) -> tuple[int, int]:
        """(keys, columns) of a warpgroup's part of dK."""
        return (ROWS, self.head_dim // self.parts)

    @property
    def dv_tile(self) -> tuple[int, int]:
        """(keys, columns) of a warpgroup's part of dV."""
        return (ROWS, self.head_dim_v // self.parts)

    @property
    def dq_tile(self) -> tuple[int, int]:
        """(queries, columns) of a tile of dQ."""
        return (ROWS, self.tuning.dq_columns)

    @property
    def dq_grid(self) -> tuple[int, int]:
        """Tiles of dQ per block of queries: (along the rows, along the columns)."""
        return (self.m_tile // ROWS, self.head_dim // self.tuning.dq_columns)

    @property
    def dq_tiles(self) -> int:
        """Tiles of dQ per block of queries, each for one warpgroup."""
        return self.dq_grid[0] * self.dq_grid[1]

    @property
    def dq_tile_threads(self) -> int:
        """Those of a warpgroup."""
        return 32 * WARPGROUP

    @property
    def roles(self) -> dict[str, Role]:
        """Load and reduce share a warpgroup, and its register budget, with idle warps."""
        (compute, others), reduce = self.tuning.registers, 2 if self.deterministic else 1
        return {
            "load": Role(0, 1, others),
            "reduce": Role(1, reduce, others),
            "idle": Role(1 + reduce, WARPGROUP - 1 - reduce, others),
            "compute": Role(WARPGROUP, WARPGROUP * self.tuning.warpgroups, compute),
        }

    def edges(self) -> tuple[Edge, ...]:
        """The pipeline edges of this plan's kernel."""
        return hopper_backward_edges(SLOTS, self.tuning.stages)

    def named_barriers(self) -> dict[NamedBarrier, int]:
        """All compute warps wait for each other before dV, and dK, leave."""
        return {GRADIENTS_WRITTEN: 1}

    def buffers(self) -> dict[str, int]:
        """Bytes of the buffers in shared memory, in their order."""
        tuning, ds_bytes = self.tuning, DS_STAGES * self.m_tile * self.n_block * DTYPE_BYTES
        return {
            "sTile": SLOTS * SLOT_WORDS * 4,
            "sLSE": tuning.stages * self.row_bytes,
            "sDelta": tuning.stages * self.row_bytes,
            "sK": self.k_block_bytes,
            "sV": self.v_block_bytes,
            "sQ": tuning.stages * self.q_block_bytes,
            "sdO": tuning.stages * self.do_block_bytes,
            "sdS": ds_bytes,
            "sP": ds_bytes if tuning.columns_split else 0,
            "sdQ": self.dq_block_floats * FLOAT_BYTES,
        }

    def smem(self) -> SharedMemoryMap:
        """Offsets in shared memory."""
        return shared_memory_map(self.edges(), self.buffers())

    @property
    def gradient_places(self) -> dict[str, tuple[str, int]]:
        """Where dK and dV lie on their way to global memory: (buffer, bytes from its start).

        Not where K and V are, so that those of the next tile can be loaded meanwhile.
        """
        if self.tuning.columns_split:
            return {"dK": ("sdQ", 0), "dV": ("sdQ", self.k_block_bytes)}
        return {"dK": ("sdQ", 0), "dV": ("sdS", 0)}

    def check(self) -> None:
        """Raise ValueError when the plan does not fit the chip or breaks a rule of its kernel."""
        super().check()
        require(
            self.m_tile % ROWS == 0 and self.head_dim % self.tuning.dq_columns == 0,
            f"{self.name}: dQ ({self.m_tile}, {self.head_dim}) is not made of tiles "
            f"{self.dq_tile}. Take m_block={ROWS} or a multiple, and dq_columns that divide.",
        )
        require(
            self.tuning.stages > 1 or not self.tuning.scores_ahead,
            f"{self.name}: stages=1, but scores_ahead needs the next Q too. Take 2 stages.",
        )
        require(
            self.tuning.columns_split or not self.tuning.scores_ahead,
            f"{self.name}: scores_ahead is for columns_split, which leaves registers for it. Turn "
            "it off.",
        )
        require(
            not (self.tuning.rounded_p and self.softcap),
            f"{self.name}: rounded_p with softcap, whose slope is part of the exact P. Turn one "
            "off.",
        )
        require(
            self.dq_tiles == self.tuning.warpgroups,
            f"{self.name}: {self.dq_tiles} tiles of dQ for {self.tuning.warpgroups} warpgroups, "
            "which take one each. Change dq_columns.",
        )
        self._check_gradients()

    def _check_gradients(self) -> None:
        """Raise ValueError when dK or dV would reach over the end of the buffer it leaves by."""
        nbytes, buffers = {"dK": self.k_block_bytes, "dV": self.v_block_bytes}, self.buffers()
        for gradient, (buffer, offset) in self.gradient_places.items():
            end = offset + nbytes[gradient]
            require(
                end <= buffers[buffer],
                f"{self.name}: {gradient} of {self.n_block} keys ends at byte {end} of {buffer}, "
                f"which has {buffers[buffer]}. Take fewer warpgroups or a larger m_block.",
            )


def hopper_backward_plan(dims: tuple[int, int], fields: dict[str, object]) -> HopperBackwardPlan:
    """The backward plan for unpadded head dims; `fields` are its other fields."""
    head_dim, head_dim_v = (padded(dim, PADDED_HEAD_DIMS) for dim in dims)
    if (head_dim, head_dim_v) not in TUNED:
        head_dim = head_dim_v = max(head_dim, head_dim_v)
    return HopperBackwardPlan(
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        tuning=(TUNED_SOFTCAP if fields["softcap"] else TUNED)[head_dim, head_dim_v],
        **fields,
    )
