"""Mutants that nothing notices, and why."""

from __future__ import annotations

from bench.mutants.experiment import Mutant

_STORES_FIRST = (
    "In the masked path the compiler has moved all stores of P before the wait and the fence of "
    "the head, so that this second pair has nothing left to order"
)

_KERNEL_ENDS = "What is left to be written is written by the end of the kernel anyhow"
_ALL_READ = "Every store has been waited for until it had read its source; " + _KERNEL_ENDS.lower()

# (kernel, where) -> [(opcode or "", reason)]
_EXPLAINED: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("sm_100a", "q_loaded acquire 1"): [
        (
            "mbarrier",
            "Both query tiles are handed back together, after the last Q K^T of either, and the "
            "first is waited for before",
        )
    ],
    ("sm_100a", "p_tail_written commit 0"): [("tcgen05.fence", _STORES_FIRST)],
    ("sm_100a", "softmax.py: cute.arch.fence_view_async_tmem_store"): [
        ("tcgen05.wait::st", _STORES_FIRST)
    ],
    ("sm_100a", "o_rescaled commit 1"): [
        (
            "tcgen05.fence",
            "What correction has learnt since the fence of query tile 0, the MMA warp learns from "
            "the softmax warps of this tile through p_written",
        )
    ],
    ("sm_100a", "epilogue.py: cute.arch.cp_async_bulk_wait_group"): [
        ("cp.async.bulk.wait_group", _ALL_READ)
    ],
    ("sm_90a one Q buffer", "output.py: cute.arch.cp_async_bulk_wait_group"): [
        ("cp.async.bulk.wait_group", _ALL_READ)
    ],
    ("sm_90a one Q buffer", "tile_assigned acquire 0"): [
        (
            "mbarrier",
            "Load has acquired the query buffers of the tile in between, and a warp hands its "
            "buffer back after its last look at its slot",
        )
    ],
}


def explanation(kernel: str, mutant: Mutant) -> str:
    """Why a mutant survives; "" when nobody has found out yet."""
    site = mutant.site
    if mutant.change == "weakened" and site.opcode == "cp.async.bulk.wait_group":
        return _KERNEL_ENDS
    for opcode, reason in _EXPLAINED.get((kernel, site.where), ()):
        if site.opcode.startswith(opcode):
            return reason
    return ""
