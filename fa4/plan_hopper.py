"""Plans for Hopper (sm_90a): consumer warpgroups with 64 query rows each, scores in registers."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.pipeline.barriers import TURN_HANDED_ON, WARPGROUP_ARRIVED, NamedBarrier
from fa4.pipeline.edges import Edge, hopper_edges
from fa4.pipeline.storage import SharedMemoryMap, shared_memory_map
from fa4.plan_base import WARPGROUP, BasePlan, Role, padded, require

ROWS = 64  # query rows per warpgroup: the M of one wgmma
PADDED_HEAD_DIMS = (64, 96, 128, 192, 256)
LONG = 4096  # keys
O_COLUMNS = 32  # 64 bytes, the narrowest swizzle that stays free of bank conflicts
SLOTS = 2  # work tiles under way: one that is attended to, one whose loads run ahead
SLOT_WORDS = 4  # of 4 bytes, see tiles/tile_queue.py
QUEUE_WORDS = SLOT_WORDS + 2
MOST_WARPGROUPS = 5  # consumers: each has two named barriers, see pipeline/barriers.py


@dataclass(frozen=True)
class HopperTuning:
    """Choices that only speed depends on; see TUNED for the reasons."""

    warpgroups: int  # consumers
    n_block: int  # keys per block
    kv_stages: int
    q_stages: int  # buffers per warpgroup for Q
    registers: tuple[int, int]  # per thread: consumers, load
    o_parts: int = 0  # 0: O goes where Q was; n: through a buffer of its own, a part at a time
    persistent: bool = True  # CTAs take tiles from a counter, or each has one
    longest_first: bool = True  # the order of tiles under a causal mask
    skip: bool = True  # warpgroups leave out the blocks that their own rows do not see
    ping_pong: bool = False  # warpgroups take turns in issuing their MMAs


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


# The first line that fits counts. Each was measured on an H200 beside others for its head dims, see
# bench/results/hopper_tried.md; hopper.json has the grid of 64, 128 and 256. Many small warpgroups
# with blocks of 64 keys hide the softmax best. At head dim 64 long sequences want wider blocks, and
# turns. Above 128 a buffer of its own for O, as large as fits, lets the next Q be loaded in time.
TUNED = (
    Line((64, 64), HopperTuning(4, 64, 6, 2, (112, 24)), most_keys=LONG),
    Line((64, 64), HopperTuning(4, 64, 6, 2, (112, 24)), masked=True, most_keys=2 * LONG),
    Line((64, 64), HopperTuning(3, 128, 3, 2, (160, 24), ping_pong=True)),
    Line((96, 96), HopperTuning(3, 96, 3, 2, (160, 24))),
    Line((128, 128), HopperTuning(3, 64, 3, 2, (160, 24))),
    Line((192, 128), HopperTuning(3, 64, 2, 2, (160, 24))),
    Line((192, 192), HopperTuning(2, 64, 2, 1, (240, 24), o_parts=1)),
    Line((256, 256), HopperTuning(2, 64, 2, 1, (240, 24), o_parts=2)),
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

    folder = "hopper/"
    growing = ("attend",)
    m_tile = ROWS
    rescale_threshold = 0.0  # O is rescaled whenever a row maximum that counts grew

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
        return hopper_edges(SLOTS, self.tuning.kv_stages, self.q_buffers)

    def named_barriers(self) -> dict[NamedBarrier, int]:
        """One of each per warpgroup, those for turns only if turns are taken."""
        turns = self.q_tiles if self.tuning.ping_pong else 0
        return {WARPGROUP_ARRIVED: self.q_tiles, TURN_HANDED_ON: turns}

    @property
    def q_buffers(self) -> int:
        """Buffers for query tiles; buffer `stage * q_tiles + t` belongs to warpgroup t."""
        return self.tuning.q_stages * self.q_tiles

    @property
    def o_box(self) -> tuple[int, int]:
        """(rows, columns) of a part of an output tile."""
        return (self.m_tile, self.head_dim_v // max(1, self.tuning.o_parts))

    @property
    def o_part_bytes(self) -> int:
        """One part of an output tile."""
        return self.o_tile_bytes // max(1, self.tuning.o_parts)

    @property
    def q_buffer_bytes(self) -> int:
        """Q while it is attended to, and then, without parts, O on its way to global memory."""
        return max(self.q_tile_bytes, 0 if self.tuning.o_parts else self.o_tile_bytes)

    @property
    def o_buffers(self) -> int:
        """Where O goes: buffers of its own, or those of Q."""
        return self.q_tiles if self.tuning.o_parts else self.q_buffers

    @property
    def o_buffer_bytes(self) -> int:
        """From one buffer for O to the next."""
        return self.o_part_bytes if self.tuning.o_parts else self.q_buffer_bytes

    @property
    def persistent(self) -> bool:
        """Whether CTAs take tile after tile from a counter."""
        return self.tuning.persistent

    @property
    def longest_first(self) -> bool:
        """Whether late tiles are longer, and come first."""
        return self.tuning.longest_first and super().longest_first

    def check(self) -> None:
        """Raise ValueError when the plan does not fit the chip or breaks a rule of its kernel."""
        tuning = self.tuning
        require(
            2 <= tuning.warpgroups <= MOST_WARPGROUPS,
            f"{self.name}: warpgroups={tuning.warpgroups}; a single one cannot get more registers, "
            f"and named barriers suffice for {MOST_WARPGROUPS}. Take 2 to {MOST_WARPGROUPS}.",
        )
        require(
            tuning.o_parts == 0 or tuning.q_stages == 1,
            f"{self.name}: o_parts={tuning.o_parts} with q_stages={tuning.q_stages}; a buffer of "
            "its own for O is there to free the one buffer for Q. Take q_stages=1 or o_parts=0.",
        )
        require(
            tuning.o_parts == 0 or self.head_dim_v % (O_COLUMNS * tuning.o_parts) == 0,
            f"{self.name}: o_parts={tuning.o_parts} of {self.head_dim_v} columns; a part is a "
            f"multiple of {O_COLUMNS} columns, the width of a swizzle. Take a divisor.",
        )
        super().check()

    def smem(self) -> SharedMemoryMap:
        """Offsets in shared memory."""
        stages = self.tuning.kv_stages
        buffers = {
            "sTile": SLOTS * QUEUE_WORDS * 4,
            "sQ": self.q_buffers * self.q_buffer_bytes,
            "sO": self.q_tiles * self.o_part_bytes if self.tuning.o_parts else 0,
            "sK": stages * self.k_block_bytes,
            "sV": stages * self.v_block_bytes,
        }
        return shared_memory_map(self.edges(), buffers)


def hopper_plan(dims: tuple[int, int], fields: dict[str, object], keys: int) -> HopperPlan:
    """The Hopper plan for unpadded head dims; `fields` are the other fields of BasePlan."""
    head_dim, head_dim_v = (padded(dim, PADDED_HEAD_DIMS) for dim in dims)
    if (head_dim, head_dim_v) not in {line.dims for line in TUNED}:
        head_dim = head_dim_v = max(head_dim, head_dim_v)
    masked = bool(fields["right_bound"] or fields["left_bound"])
    lines = (line for line in TUNED if line.fits((head_dim, head_dim_v), masked, keys))
    return HopperPlan(
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        tuning=next(lines).tuning,
        # float16 P overflows at 2^16, bfloat16 P has the exponents of float32
        fixed_reference=fields["dtype"] == "bfloat16",
        **fields,
    )
