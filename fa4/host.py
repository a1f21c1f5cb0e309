"""Host side of the forward kernel, compiled with it: TMA descriptors, schedule, grid, launch."""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, make_tiled_tma_atom_A, make_tiled_tma_atom_B

from fa4.forward import Forward
from fa4.plan import N_BLOCK, Plan
from fa4.tiles.block_range import Visibility
from fa4.tiles.bundles import Scales, TmaTensor, TmaTensors
from fa4.tiles.layouts import mma_atoms, smem_layouts
from fa4.tiles.scheduler import TileSchedule
from fa4.warps.work import CTA_ROWS, Work


@dataclass(frozen=True)
class Sizes:
    """Lengths of one problem, as runtime values."""

    batch: Int32
    seqlen_q: Int32
    seqlen_k: Int32
    heads_q: Int32
    heads_kv: Int32
    head_dim: Int32
    head_dim_v: Int32


@dataclass(frozen=True)
class Strides:
    """Strides in elements: (row, head, batch) of each tensor; the last one is 1."""

    q: tuple[Int64, Int64, Int64]
    k: tuple[Int64, Int64, Int64]
    v: tuple[Int64, Int64, Int64]
    o: tuple[Int64, Int64, Int64]


@dataclass(frozen=True)
class Runtime:
    """Everything else that changes from call to call."""

    left: Int32
    right: Int32
    section: Int32  # see TileSchedule
    num_ctas: Int32
    softmax_scale: Float32
    scale_log2: Float32
    softcap: Float32


@dataclass(frozen=True)
class ForwardHost:
    """`__call__` is what gets compiled."""

    plan: Plan

    @cute.jit
    def __call__(
        self,
        pointers: tuple[cute.Pointer, cute.Pointer, cute.Pointer, cute.Pointer, cute.Pointer],
        sizes: Sizes,
        strides: Strides,
        runtime: Runtime,
        stream: cuda.CUstream,
    ) -> None:
        """Launch on q, k, v, o, lse (in this order in `pointers`)."""
        tma = self._copies(pointers, sizes, strides)
        n, rows = sizes, sizes.seqlen_q
        lse_layout = cute.make_layout(
            (rows, n.heads_q, n.batch),
            stride=(1, Int64(rows), Int64(rows) * n.heads_q),
        )
        schedule = TileSchedule(
            num_m=(rows + CTA_ROWS - 1) // CTA_ROWS,
            heads=n.heads_q,
            heads_kv=n.heads_kv,
            batch=n.batch,
            section=runtime.section,
            longest_first=self.plan.right_bound and not self.plan.left_bound,
        )
        visibility = Visibility(
            seqlen_q=rows,
            seqlen_k=n.seqlen_k,
            left=runtime.left,
            right=runtime.right,
            left_bound=self.plan.left_bound,
            right_bound=self.plan.right_bound,
            n_block=N_BLOCK,
        )
        scales = Scales(runtime.softmax_scale, runtime.scale_log2, runtime.softcap)
        kernel = Forward(self.plan).kernel
        kernel.set_name_prefix(self.plan.name, remove_cutlass_symbol=True, keep_mangled_name=False)
        kernel(
            tma, cute.make_tensor(pointers[4], lse_layout), Work(schedule, visibility), scales
        ).launch(
            grid=[cutlass.min(schedule.num_tiles, runtime.num_ctas), 1, 1],
            block=[self.plan.threads, 1, 1],
            stream=stream,
            min_blocks_per_mp=1,  # without it ptxas ignores setmaxnreg
        )

    def _copies(self, pointers: tuple, sizes: Sizes, strides: Strides) -> TmaTensors:
        n, plan = sizes, self.plan
        mma, layouts = mma_atoms(plan), smem_layouts(plan)
        mQ = _tensor(pointers[0], (n.seqlen_q, n.head_dim, n.heads_q, n.batch), strides.q)
        mK = _tensor(pointers[1], (n.seqlen_k, n.head_dim, n.heads_kv, n.batch), strides.k)
        mV = _tensor(pointers[2], (n.seqlen_k, n.head_dim_v, n.heads_kv, n.batch), strides.v)
        mV = cute.make_tensor(mV.iterator, cute.select(mV.layout, mode=[1, 0, 2, 3]))
        mO = _tensor(pointers[3], (n.seqlen_q, n.head_dim_v, n.heads_q, n.batch), strides.o)
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        o_layout = cute.select(layouts.o, mode=[0, 1])
        return TmaTensors(
            q=_copy(make_tiled_tma_atom_A(load, mQ, layouts.q, plan.qk_tile, mma.qk)),
            k=_copy(make_tiled_tma_atom_B(load, mK, layouts.k, plan.qk_tile, mma.qk)),
            v=_copy(make_tiled_tma_atom_B(load, mV, layouts.v, plan.pv_tile, mma.pv)),
            o=_copy(cpasync.make_tiled_tma_atom(store, mO, o_layout, plan.o_box)),
        )


def _tensor(pointer: cute.Pointer, shape: tuple, strides: tuple) -> cute.Tensor:
    """(rows, columns, heads, batch); strides are multiples of 16 bytes, as TMA wants them."""
    row, head, batch = (cute.assume(stride, divby=8) for stride in strides)
    return cute.make_tensor(pointer, cute.make_layout(shape, stride=(row, 1, head, batch)))


def _copy(info: cpasync.TmaInfo) -> TmaTensor:
    return TmaTensor(info[0], info[1])
