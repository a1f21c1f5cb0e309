"""The table of pipeline edges: the single truth about who waits for whom.

Barrier storage, arrive counts, the diagram, the emulator's deadlock report and the profiler's
labels are all derived from it. An edge is named after what has happened when its consumer wakes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NEVER = "never"


class Kind(Enum):
    """What completes the phase of an edge's mbarrier."""

    TMA = "TMA"  # bulk copies complete the transaction count that one elected lane announced
    UMMA = "UMMA"  # tcgen05.commit arrives once all earlier MMAs of the issuing thread are done
    WARPS = "warps"  # one elected lane of every producing warp arrives


@dataclass(frozen=True)
class Edge:
    """One hand-over between two roles.

    stages: how many mbarriers the edge has. Per query tile (two of them) or per ring slot.
    released_by: how the producer learns that it may produce again. `"commit"` and `"warps"` are a
        second mbarrier per stage, arrived on by the consumer with tcgen05.commit or with one
        elected lane per warp; NEVER says that a stage is filled once per CTA; any other value names
        the edge whose completion implies it.
    shared: whether the consumers of all query tiles take part in each stage, not those of one.
    orders_tmem: whether a tcgen05 access of the consumer must come after one before the hand-over;
        mbarriers order those only together with tcgen05.fence on both sides (PTX ISA,
        tcgen05 memory consistency).
    """

    name: str
    producer: str
    consumer: str
    kind: Kind
    stages: int
    released_by: str
    meaning: str
    shared: bool = False
    orders_tmem: bool = False

    @property
    def has_release(self) -> bool:
        """Whether the consumer hands the stage back through an mbarrier of its own."""
        return self.released_by in ("commit", "warps")

    def arrive_count(self, warps: dict[str, int]) -> int:
        """Arrivals that complete the phase; `warps` maps a role to its warps per query tile."""
        return warps[self.producer] if self.kind is Kind.WARPS else 1

    def release_count(self, warps: dict[str, int], q_tiles: int) -> int:
        """Arrivals that hand the stage back; see `arrive_count`."""
        tiles = q_tiles if self.shared else 1
        return warps[self.consumer] * tiles if self.released_by == "warps" else 1


def forward_edges(kv_stages: int, o_stages: int) -> tuple[Edge, ...]:
    """Edges of the forward kernel; there are two query tiles per CTA, so most have two stages.

    scale_written orders tensor memory too: O may be rescaled once P V of the block before is done,
    which softmax knows from s_computed and correction from scale_written alone.
    """
    tma, umma, warps = Kind.TMA, Kind.UMMA, Kind.WARPS
    rows = (
        # name, producer, consumer, kind, stages, released by, orders TMEM, meaning
        ("q_loaded", "load", "mma", tma, 2, "commit", 0, "a query tile is in shared memory"),
        ("kv_loaded", "load", "mma", tma, kv_stages, "commit", 0, "a K or V block is in its ring"),
        ("s_computed", "mma", "softmax", umma, 2, "p_written", 1, "S = Q K^T is in TMEM"),
        ("scale_written", "softmax", "correction", warps, 2, "o_rescaled", 1, "O's factor is set"),
        ("o_rescaled", "correction", "mma", warps, 2, "scale_written", 1, "O may be added to"),
        ("p_written", "softmax", "mma", warps, 2, "s_computed", 1, "the head of P is in TMEM"),
        ("p_tail_written", "softmax", "mma", warps, 2, "s_computed", 1, "the rest of P is too"),
        ("total_written", "softmax", "correction", warps, 2, "warps", 0, "the row sums are final"),
        ("o_accumulated", "mma", "correction", umma, 2, "o_rescaled", 1, "O is complete in TMEM"),
        ("o_written", "correction", "epilogue", warps, o_stages, "warps", 0, "O / l is in smem"),
    )
    return tuple(Edge(*row, meaning, orders_tmem=bool(tmem)) for *row, tmem, meaning in rows)


def hopper_edges(slots: int, kv_stages: int, q_buffers: int) -> tuple[Edge, ...]:
    """Edges of the Hopper forward kernel; each query tile belongs to one consumer warpgroup."""
    tma, warps = Kind.TMA, Kind.WARPS
    rows = (
        # name, producer, consumer, kind, stages, released by, meaning, shared
        (
            "tile_assigned",
            "load",
            "attend",
            warps,
            slots,
            "warps",
            "the next work tile is known",
            True,
        ),
        ("q_loaded", "load", "attend", tma, q_buffers, "warps", "a query tile is in smem", False),
        ("k_loaded", "load", "attend", tma, kv_stages, "warps", "a K block is in its ring", True),
        ("v_loaded", "load", "attend", tma, kv_stages, "warps", "a V block is in its ring", True),
    )
    return tuple(Edge(*row) for row in rows)


def backward_edges(q_stages: int, do_stages: int) -> tuple[Edge, ...]:
    """Edges of the Blackwell backward kernel: one key block per CTA, query blocks pass by.

    dS goes to tensor memory for dK, and to shared memory for dQ. Both are free again when dP of the
    next block is computed, since a commit comes after all earlier MMAs. A block's Q is handed back
    after dK, which needs dS and so comes after all reads of LSE and delta; and after all reads of
    dO, which needs a release of its own only where fewer stages of it must be free sooner.
    """
    tma, umma, warps = Kind.TMA, Kind.UMMA, Kind.WARPS
    do_released = "commit" if do_stages < q_stages else "q_loaded"
    rows = (
        # name, producer, consumer, kind, stages, released by, orders TMEM, meaning
        ("k_loaded", "load", "mma", tma, 1, NEVER, 0, "the CTA's keys are in smem"),
        ("v_loaded", "load", "mma", tma, 1, NEVER, 0, "the CTA's values are in smem"),
        ("q_loaded", "load", "mma", tma, q_stages, "commit", 0, "a Q block is in smem"),
        ("do_loaded", "load", "mma", tma, do_stages, do_released, 0, "a dO block is in smem"),
        ("rows_loaded", "load", "compute", tma, q_stages, "q_loaded", 0, "so are LSE and delta"),
        ("s_computed", "mma", "compute", umma, 1, "p_written", 1, "S^T = K Q^T is in TMEM"),
        ("p_written", "compute", "mma", warps, 1, "s_computed", 1, "P^T is in TMEM"),
        ("dp_computed", "mma", "compute", umma, 1, "ds_written", 1, "dP^T = V dO^T is in TMEM"),
        ("ds_written", "compute", "mma", warps, 1, "dp_computed", 1, "dS^T is in TMEM and smem"),
        ("dq_computed", "mma", "reduce", umma, 1, "dq_read", 1, "dQ of a block is in TMEM"),
        ("dq_read", "reduce", "mma", warps, 1, "dq_computed", 1, "its columns are free"),
        ("gradients_computed", "mma", "compute", umma, 1, NEVER, 1, "dV and dK are in TMEM"),
        ("gradients_read", "compute", "mma", warps, 1, NEVER, 0, "TMEM may be freed"),
    )
    return tuple(Edge(*row, meaning, orders_tmem=bool(tmem)) for *row, tmem, meaning in rows)


def hopper_backward_edges(slots: int, stages: int) -> tuple[Edge, ...]:
    """Edges of the Hopper backward kernel: a CTA takes key blocks, and query blocks pass by.

    The load warp brings V after K and dO after Q; K and Q are handed back after all reads of V and
    dO. dS has two buffers: whoever writes one of them has seen ds_written of the other, which every
    warp signals after its products with the former dS. Between tiles dK and dV use the memory of dS
    and dQ: from the release of dq_written on, until named barrier GRADIENTS_WRITTEN behind their
    stores.
    """
    tma, warps = Kind.TMA, Kind.WARPS
    rows = (
        # name, producer, consumer, kind, stages, released by, meaning
        ("tile_assigned", "load", "compute", warps, slots, "warps", "the next tile is known"),
        ("dq_assigned", "load", "reduce", warps, slots, "warps", "it is known whose dQ comes"),
        ("k_loaded", "load", "compute", tma, 1, "warps", "a tile's keys are in smem"),
        ("v_loaded", "load", "compute", tma, 1, "k_loaded", "a tile's values are in smem"),
        ("q_loaded", "load", "compute", tma, stages, "warps", "a Q block and its LSE are in smem"),
        ("do_loaded", "load", "compute", tma, stages, "q_loaded", "its dO and delta are in smem"),
        ("ds_written", "compute", "compute", warps, 2, "ds_written", "dS of all keys is in smem"),
        ("dq_written", "compute", "reduce", warps, 1, "warps", "a dQ block is in smem"),
    )
    return tuple(Edge(*row) for row in rows)
