"""Plans for the backward pass on Blackwell (sm_100a): everything but Q, K, V, dO is in TMEM."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.pipeline.edges import Edge, backward_edges
from fa4.pipeline.storage import SharedMemoryMap, shared_memory_map
from fa4.pipeline.tmem import BackwardTmemMap, backward_tmem_map
from fa4.plan_backward_base import FLOAT_BYTES, BackwardPlan
from fa4.plan_base import DTYPE_BYTES, WARPGROUP, Role, require
from fa4.plan_blackwell import padded_head_dims, tuned

TILE = 128  # keys of a CTA, and queries of a block: the M of one tcgen05.mma, a TMEM lane per row
LANES = 32  # of the 128 of tensor memory, which a warp of a warpgroup reaches
COMPUTE_GROUPS = 2  # warpgroups that halve the queries of a block among themselves
DQ_CHUNK = 32  # columns of dQ that leave in one bulk reduction of a warp


@dataclass(frozen=True)
class BackwardTuning:
    """Choices per head dim that only speed depends on; see TUNED for the reasons."""

    q_stages: int  # of Q, and of LSE and delta
    do_stages: int
    registers: tuple[int, int, int]  # per thread: compute, reduce, the other warps


# (head dim of Q and K, of V), both padded. Shared memory decides the stages: at 128 and (192, 128)
# it is full. A thread of reduce takes its row of dQ into registers at once, or half of 192 columns,
# since the tensor core waits for those of tensor memory.
TUNED = {
    (64, 64): BackwardTuning(2, 2, (152, 128, 72)),
    (96, 96): BackwardTuning(2, 2, (144, 152, 72)),
    (128, 128): BackwardTuning(2, 1, (144, 152, 72)),
    (192, 128): BackwardTuning(1, 1, (152, 136, 72)),
}


@dataclass(frozen=True)
class BlackwellBackwardPlan(BackwardPlan):
    """A plan for Blackwell: one CTA per block of keys, roles in single warps and warpgroups."""

    tuning: BackwardTuning

    folder = "backward/"
    growing = ("compute", "reduce")
    m_tile = n_block = TILE
    persistent = False

    @property
    def roles(self) -> dict[str, Role]:
        """Warps and registers by role. setmaxnreg acts on warpgroups: 4 warps share a budget."""
        compute, reduce, others = self.tuning.registers
        first = WARPGROUP * COMPUTE_GROUPS
        return {
            "compute": Role(0, first, compute),
            "reduce": Role(first, WARPGROUP, reduce),
            "mma": Role(first + WARPGROUP, 1, others),
            "load": Role(first + WARPGROUP + 1, 1, others),
            "idle": Role(first + WARPGROUP + 2, 2, others),
        }

    def edges(self) -> tuple[Edge, ...]:
        """The pipeline edges of this plan's kernel."""
        return backward_edges(self.tuning.q_stages, self.tuning.do_stages)

    def tmem(self) -> BackwardTmemMap:
        """Columns of tensor memory."""
        return backward_tmem_map(TILE, self.head_dim, self.head_dim_v)

    def notes(self) -> list[str]:
        """Where the tiles lie in tensor memory."""
        return [f"tensor memory: {self.tmem().describe()}"]

    @property
    def group_queries(self) -> int:
        """Queries of a block that one compute warpgroup takes, one thread per key."""
        return TILE // COMPUTE_GROUPS

    @property
    def gradient_rows(self) -> int:
        """Those of one warp's lanes."""
        return LANES

    @property
    def scores_per_thread(self) -> int:
        """Of a block."""
        return self.group_queries

    @property
    def dq_tiles(self) -> int:
        """One per warp of reduce, of 32 rows."""
        return WARPGROUP

    @property
    def turns(self) -> int:
        """Each warp of reduce takes its own."""
        return self.dq_tiles

    @property
    def dq_tile_threads(self) -> int:
        """A thread per row."""
        return LANES

    @property
    def dq_chunk_floats(self) -> int:
        """What a warp of reduce adds to global memory at a time."""
        return LANES * DQ_CHUNK

    @property
    def dq_stages(self) -> int:
        """Chunks of dQ that a warp of reduce may have on their way; each has the same stage in
        every block, so the number divides that of the chunks."""
        return 3 if self.head_dim // DQ_CHUNK % 2 else 2

    def smem(self) -> SharedMemoryMap:
        """Offsets in shared memory."""
        tuning = self.tuning
        staging = WARPGROUP * self.dq_stages * self.dq_chunk_floats * FLOAT_BYTES
        return shared_memory_map(
            self.edges(),
            {
                "tmem_address": 4,
                "sLSE": tuning.q_stages * self.row_bytes,
                "sDelta": tuning.q_stages * self.row_bytes,
                "sK": self.k_block_bytes,
                "sV": self.v_block_bytes,
                "sQ": tuning.q_stages * self.q_block_bytes,
                "sdO": tuning.do_stages * self.do_block_bytes,
                "sdS": TILE * TILE * DTYPE_BYTES,
                "sdQ": staging,
            },
        )

    def check(self) -> None:
        """Raise ValueError when the plan does not fit the chip or breaks a rule of its kernel."""
        super().check()
        stages = self.tuning.q_stages
        require(
            stages > 1 or not self.tmem().scores_ahead,
            f"{self.name}: q_stages={stages}, but S of the next block is computed before dK of "
            "this one. Take 2.",
        )


def blackwell_backward_plan(
    dims: tuple[int, int], fields: dict[str, object]
) -> BlackwellBackwardPlan:
    """The backward plan for unpadded head dims; `fields` are its other fields.

    Raises ValueError for head dims without a kernel.
    """
    head_dim, head_dim_v = padded_head_dims(dims, fields["arch"])
    return BlackwellBackwardPlan(
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        tuning=tuned(TUNED, head_dim, head_dim_v),
        **fields,
    )
