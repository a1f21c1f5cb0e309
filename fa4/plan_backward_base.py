"""What a plan of the backward pass is on every architecture. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.plan_base import DTYPE_BYTES, BasePlan

FLOAT_BYTES = 4


@dataclass(frozen=True)
class BackwardPlan(BasePlan):
    """A work tile is a block of keys, with which a CTA walks the blocks of queries that see them.

    An architecture adds its tuning, tiles and roles.
    """

    deterministic: bool  # the parts of dQ are added in a fixed order

    prefix = "fa4_bwd"
    q_tiles = 1  # every warp of a role takes part in every stage

    @property
    def name(self) -> str:
        """Entry name of the kernel, for profilers."""
        return super().name + ("_deterministic" if self.deterministic else "")

    @property
    def key_rows(self) -> int:
        """Keys of one tile in shared memory, as TMA copies them."""
        return self.n_block

    @property
    def gradient_rows(self) -> int:
        """Keys of dK and dV that one TMA copy stores."""
        return self.key_rows

    @property
    def scores_per_thread(self) -> int:
        """Scores of a block of queries that one thread of compute works on."""
        raise NotImplementedError

    @property
    def dq_tiles(self) -> int:
        """Tiles of dQ per block of queries, see `tiles.dq_sum`."""
        raise NotImplementedError

    @property
    def dq_tile_threads(self) -> int:
        """Threads that hold a tile of dQ in registers."""
        raise NotImplementedError

    @property
    def turns(self) -> int:
        """Parts of a block of dQ that are added in turns of their own, see `DqTurn`."""
        return 1

    @property
    def dq_block_floats(self) -> int:
        """dQ of a block of queries in float32, as accumulated in global memory."""
        return self.m_tile * self.head_dim

    def warps_per_stage(self) -> dict[str, int]:
        """All warps of a role."""
        return {name: role.warps for name, role in self.roles.items()}

    @property
    def q_block_bytes(self) -> int:
        """One block of queries."""
        return self.m_tile * self.head_dim * DTYPE_BYTES

    @property
    def do_block_bytes(self) -> int:
        """One block of dO."""
        return self.m_tile * self.head_dim_v * DTYPE_BYTES

    @property
    def row_bytes(self) -> int:
        """LSE, or delta, of one block of queries."""
        return self.m_tile * FLOAT_BYTES
