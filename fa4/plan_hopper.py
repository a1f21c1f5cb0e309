"""Plans for Hopper (sm_90a): consumer warpgroups with 64 query rows each, scores in registers."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.pipeline.edges import Edge, hopper_edges
from fa4.pipeline.storage import SharedMemoryMap, shared_memory_map
from fa4.plan_base import BasePlan, Role, padded

WARPGROUP = 4  # warps
ROWS = 64  # query rows per warpgroup: the M of one wgmma
PADDED_HEAD_DIMS = (64, 96, 128, 192, 256)


@dataclass(frozen=True)
class HopperTuning:
    """Choices per head dim that only speed depends on; see TUNED for the reasons."""

    warpgroups: int  # consumers
    n_block: int  # keys per block
    kv_stages: int
    q_stages: int  # buffers per warpgroup for Q, where the tile's O goes in the end
    registers: tuple[int, int]  # per thread: consumers, load


# (head dim of Q and K, of V), both padded. Measured on an H200, see README.
TUNED = {
    (64, 64): HopperTuning(4, 64, 4, 2, (112, 24)),
    (96, 96): HopperTuning(3, 64, 3, 2, (160, 24)),
    (128, 128): HopperTuning(3, 64, 3, 2, (160, 24)),
    (192, 128): HopperTuning(3, 64, 2, 2, (160, 24)),
    (192, 192): HopperTuning(2, 64, 2, 1, (240, 24)),
    (256, 256): HopperTuning(2, 80, 2, 1, (240, 24)),
}

# From LONG keys on, without a mask: wider blocks keep the tensor cores busier, and the longer
# first and last block of a tile no longer count.
LONG = 8192
TUNED_LONG_FULL = {(64, 64): HopperTuning(3, 128, 3, 2, (160, 24))}


@dataclass(frozen=True)
class HopperPlan(BasePlan):
    """A plan for Hopper: one load warp, and warpgroups that attend."""

    tuning: HopperTuning
    fixed_reference: bool  # after the masked blocks the row maximum is frozen, see online_softmax

    m_tile = ROWS

    @property
    def q_tiles(self) -> int:
        """One query tile per consumer warpgroup."""
        return self.tuning.warpgroups

    @property
    def n_block(self) -> int:
        """Keys of one block."""
        return self.tuning.n_block

    @property
    def roles(self) -> dict[str, Role]:
        """The load warp shares its warpgroup, and its register budget, with three idle warps."""
        attend, load = self.tuning.registers
        return {
            "load": Role(0, 1, load),
            "idle": Role(1, WARPGROUP - 1, load),
            "attend": Role(WARPGROUP, WARPGROUP * self.q_tiles, attend),
        }

    def warps_per_stage(self) -> dict[str, int]:
        """Warps of a role per query tile."""
        return {"load": 1, "idle": 0, "attend": WARPGROUP}

    def edges(self) -> tuple[Edge, ...]:
        """The pipeline edges of this plan's kernel."""
        return hopper_edges(self.tuning.kv_stages, self.q_buffers)

    @property
    def q_buffers(self) -> int:
        """Buffers for query tiles; buffer `stage * q_tiles + t` belongs to warpgroup t."""
        return self.tuning.q_stages * self.q_tiles

    @property
    def qo_buffer_bytes(self) -> int:
        """One buffer: Q while it is attended to, then O on its way to global memory."""
        return max(self.q_tile_bytes, self.o_tile_bytes)

    def smem(self) -> SharedMemoryMap:
        """Offsets in shared memory."""
        stages = self.tuning.kv_stages
        buffers = {
            "sTile": 2 * 3 * 4,
            "sQO": self.q_buffers * self.qo_buffer_bytes,
            "sK": stages * self.k_block_bytes,
            "sV": stages * self.v_block_bytes,
        }
        return shared_memory_map(self.edges(), buffers)


def hopper_plan(
    dims: tuple[int, int], options: dict[str, object], long: bool = False
) -> HopperPlan:
    """The Hopper plan for unpadded head dims; `options` are the other fields of BasePlan."""
    head_dim, head_dim_v = (padded(dim, PADDED_HEAD_DIMS) for dim in dims)
    if (head_dim, head_dim_v) not in TUNED:
        head_dim = head_dim_v = max(head_dim, head_dim_v)
    tuning = TUNED[head_dim, head_dim_v]
    if long and not (options["right_bound"] or options["left_bound"]):
        tuning = TUNED_LONG_FULL.get((head_dim, head_dim_v), tuning)
    return HopperPlan(
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        rescale_threshold=0.0,
        tuning=tuning,
        # float16 P overflows at 2^16, bfloat16 P has the exponents of float32
        fixed_reference=options["dtype"] == "bfloat16",
        **options,
    )
