"""Bulk copies of plain memory, without a tensor map."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import cpasync


def load_floats(gmem: cute.Tensor, smem: cute.Tensor, mbarrier: cute.Pointer) -> None:
    """Contiguous floats from global to shared memory, 16-byte aligned both; for one warp."""
    atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Float32)
    with cute.arch.elect_one():
        cute.copy(atom, gmem, smem, mbar_ptr=mbarrier)


def add_floats(smem: cute.Tensor, gmem: cute.Tensor) -> None:
    """Add contiguous floats of shared memory to global memory and commit; for one thread."""
    cute.arch.inline_ptx(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{$r0}], [{$r1}], {$r2};",
        read_only_args=[
            gmem.iterator.toint(),
            smem.iterator.toint(),
            Int32(cute.size(smem) * Float32.width // 8),
        ],
    )
    cute.arch.cp_async_bulk_commit_group()
