"""Plans for Hopper (sm_90a): consumer warpgroups with 64 query rows each, scores in registers."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.pipeline.edges import Edge, hopper_edges
from fa4.pipeline.storage import SharedMemoryMap, shared_memory_map
from fa4.plan_base import BasePlan, Role, padded

WARPGROUP = 4  # warps
ROWS = 64  # query rows per warpgroup: the M of one wgmma
PADDED_HEAD_DIMS = (64, 96, 128, 192, 256)
LONG = 4096  # keys


@dataclass(frozen=True)
class HopperTuning:
    """Choices that only speed depends on; see TUNED for the reasons."""

    warpgroups: int  # consumers
    n_block: int  # keys per block
    kv_stages: int
    q_stages: int  # buffers per warpgroup for Q, where the tile's O goes in the end
    registers: tuple[int, int]  # per thread: consumers, load


@dataclass(frozen=True)
class Line:
    """A tuning and when it is taken: by padded head dims, mask and number of keys."""

    dims: tuple[int, int]
    tuning: HopperTuning
    masked: bool | None = None  # None: with a mask or without
    most_keys: int | None = None  # None: any number

    def fits(self, dims: tuple[int, int], masked: bool, keys: int) -> bool:
        """Whether the line is for such a problem."""
        return (
            self.dims == dims
            and self.masked in (None, masked)
            and (self.most_keys is None or keys <= self.most_keys)
        )


# The first line that fits counts. Each was measured on an H200 beside others for its head dims;
# bench/results/hopper.json has what is here. Short sequences want small query tiles (of 192 rows
# an eighth is wasted at 512), and wide blocks when nothing is masked. At head dim 256 blocks of 80
# keys relieve shared memory, which bounds a wgmma with N = 64.
TUNED = (
    Line((64, 64), HopperTuning(4, 64, 6, 2, (112, 24)), most_keys=LONG),
    Line((64, 64), HopperTuning(4, 64, 6, 2, (112, 24)), masked=True),
    Line((64, 64), HopperTuning(3, 128, 3, 2, (160, 24))),
    Line((96, 96), HopperTuning(3, 64, 3, 2, (160, 24))),
    Line((128, 128), HopperTuning(2, 64, 4, 2, (240, 24)), masked=True, most_keys=1024),
    Line((128, 128), HopperTuning(2, 128, 2, 2, (240, 24)), masked=False, most_keys=1024),
    Line((128, 128), HopperTuning(3, 64, 3, 2, (160, 24))),
    Line((192, 128), HopperTuning(3, 64, 2, 2, (160, 24))),
    Line((192, 192), HopperTuning(2, 64, 2, 1, (240, 24))),
    Line((256, 256), HopperTuning(2, 64, 2, 1, (240, 24)), masked=True, most_keys=1024),
    Line((256, 256), HopperTuning(2, 64, 2, 1, (240, 24)), masked=False, most_keys=512),
    Line((256, 256), HopperTuning(2, 80, 2, 1, (240, 24))),
)


def length_class(keys: int) -> int:
    """The most keys that are planned alike; plans, and so compiled kernels, depend on it only."""
    bounds = sorted({line.most_keys for line in TUNED if line.most_keys is not None})
    return next((bound for bound in bounds if keys <= bound), bounds[-1] + 1)


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


def hopper_plan(dims: tuple[int, int], options: dict[str, object], keys: int) -> HopperPlan:
    """The Hopper plan for unpadded head dims; `options` are the other fields of BasePlan."""
    head_dim, head_dim_v = (padded(dim, PADDED_HEAD_DIMS) for dim in dims)
    if (head_dim, head_dim_v) not in {line.dims for line in TUNED}:
        head_dim = head_dim_v = max(head_dim, head_dim_v)
    masked = bool(options["right_bound"] or options["left_bound"])
    lines = (line for line in TUNED if line.fits((head_dim, head_dim_v), masked, keys))
    return HopperPlan(
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        rescale_threshold=0.0,
        tuning=next(lines).tuning,
        # float16 P overflows at 2^16, bfloat16 P has the exponents of float32
        fixed_reference=options["dtype"] == "bfloat16",
        **options,
    )
