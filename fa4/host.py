"""Host side of the forward kernel, compiled with it: TMA descriptors, schedule, grid, launch."""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64, Int32, Int64
from cutlass.cute.nvgpu import cpasync, make_tiled_tma_atom_A, make_tiled_tma_atom_B
from cutlass.cute.runtime import make_ptr

from fa4.arguments import INTEGERS, NUMBERS
from fa4.forward import Forward
from fa4.hopper import HopperForward
from fa4.numerics.scales import Scales
from fa4.plan_base import BasePlan
from fa4.plan_hopper import HopperPlan
from fa4.tiles.block_range import Visibility
from fa4.tiles.bundles import TmaTensor, TmaTensors
from fa4.tiles.hopper_layouts import hopper_layouts
from fa4.tiles.layouts import DTYPES, mma_atoms, smem_layouts
from fa4.tiles.scheduler import tile_schedule
from fa4.warps.work import Work


@dataclass(frozen=True)
class ArgumentReader:
    """The argument block, read field by field."""

    block: cute.Pointer

    integers, numbers = INTEGERS, NUMBERS

    def int64(self, name: str) -> Int64:
        """An integer field."""
        return self._field(self.block, self.integers.index(name))

    def int32(self, name: str) -> Int32:
        """An integer field that is a length, a count or a window."""
        return Int32(self.int64(name))

    def float32(self, name: str) -> Float32:
        """A floating-point field."""
        numbers = cute.recast_ptr(self.block + len(self.integers), dtype=Float64)
        return Float32(self._field(numbers, self.numbers.index(name)))

    def tensor(self, name: str, shape: tuple[str, str, str, str], dtype: type) -> cute.Tensor:
        """(rows, columns, heads, batch) with the strides of `name`, multiples of 16 bytes."""
        row, head, batch = (
            cute.assume(self.int64(f"{name}_{axis}"), divby=8) for axis in ("row", "head", "batch")
        )
        layout = cute.make_layout(
            tuple(self.int32(size) for size in shape), stride=(row, 1, head, batch)
        )
        return cute.make_tensor(self.pointer(name, dtype, 16), layout)

    def pointer(self, name: str, dtype: type, align: int) -> cute.Pointer:
        """An address field, in global memory."""
        return cute.make_ptr(dtype, self.int64(name), cute.AddressSpace.gmem, assumed_align=align)

    def _field(self, base: cute.Pointer, index: int) -> Int64 | Float64:
        return cute.make_tensor(base, cute.make_layout(index + 1))[index]


@dataclass(frozen=True)
class ForwardHost:
    """`__call__` is what gets compiled."""

    plan: BasePlan

    @cute.jit
    def __call__(self, block: cute.Pointer, stream: cuda.CUstream) -> None:
        """Launch the kernel on the packed values (`fa4.arguments`) at `block` in host memory."""
        read = ArgumentReader(block)
        visibility = Visibility(
            seqlen_q=read.int32("seqlen_q"),
            seqlen_k=read.int32("seqlen_k"),
            left=read.int32("left"),
            right=read.int32("right"),
            left_bound=self.plan.left_bound,
            right_bound=self.plan.right_bound,
            n_block=self.plan.n_block,
        )
        schedule = tile_schedule(
            num_m=(visibility.seqlen_q + self.plan.cta_rows - 1) // self.plan.cta_rows,
            heads=read.int32("heads_q"),
            heads_kv=read.int32("heads_kv"),
            batch=read.int32("batch"),
            sections=(read.int32("section"), read.int32("last_section")),
            descending=self.plan.longest_first,
        )
        scales = Scales(
            softmax=read.float32("softmax_scale"),
            log2=read.float32("scale_log2"),
            softcap=read.float32("softcap"),
        )
        work, tensors = Work(schedule, visibility, self.plan.cta_rows), self._tensors(read)
        copies, lse = self._copies(*tensors), self._lse(read)
        if cutlass.const_expr(isinstance(self.plan, HopperPlan)):
            counter = read.pointer("tile_counter", Int32, 4)
            self._launch(
                HopperForward(self.plan).kernel, (copies, lse, counter, work, scales), read, stream
            )
        else:
            self._launch(Forward(self.plan).kernel, (copies, lse, work, scales), read, stream)

    def _launch(
        self, kernel: object, arguments: tuple, read: ArgumentReader, stream: cuda.CUstream
    ) -> None:
        # With "cutlass" in its entry name ptxas generates different code
        kernel.set_name_prefix(self.plan.name, remove_cutlass_symbol=True, keep_mangled_name=False)
        ctas = arguments[-2].schedule.num_tiles
        if cutlass.const_expr(self.plan.persistent):
            ctas = cutlass.min(ctas, read.int32("num_ctas"))
        kernel(*arguments).launch(
            grid=[ctas, 1, 1],
            block=[self.plan.threads, 1, 1],
            stream=stream,
            min_blocks_per_mp=1,  # without it ptxas ignores setmaxnreg
        )

    def _tensors(self, read: ArgumentReader) -> tuple[cute.Tensor, ...]:
        """Q (Sq, D, H, B), K (Sk, D, Hk, B), V (Dv, Sk, Hk, B) and O (Sq, Dv, H, B)."""
        dtype = DTYPES[self.plan.dtype]
        mQ = read.tensor("q", ("seqlen_q", "head_dim", "heads_q", "batch"), dtype)
        mK = read.tensor("k", ("seqlen_k", "head_dim", "heads_kv", "batch"), dtype)
        mV = read.tensor("v", ("seqlen_k", "head_dim_v", "heads_kv", "batch"), dtype)
        mV = cute.make_tensor(mV.iterator, cute.select(mV.layout, mode=[1, 0, 2, 3]))
        mO = read.tensor("o", ("seqlen_q", "head_dim_v", "heads_q", "batch"), dtype)
        return mQ, mK, mV, mO

    def _copies(
        self, mQ: cute.Tensor, mK: cute.Tensor, mV: cute.Tensor, mO: cute.Tensor
    ) -> TmaTensors:
        plan = self.plan
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()

        def boxes(op: object, tensor: cute.Tensor, layout: object, box: tuple) -> TmaTensor:
            one = cute.select(layout, mode=[0, 1])
            return _copy(cpasync.make_tiled_tma_atom(op, tensor, one, box))

        if isinstance(plan, HopperPlan):
            layouts = hopper_layouts(plan)
            return TmaTensors(
                q=boxes(load, mQ, layouts.q, plan.q_box),
                k=boxes(load, mK, layouts.k, plan.k_box),
                v=boxes(load, mV, layouts.v, plan.v_box),
                o=boxes(store, mO, layouts.o, plan.o_box),
            )
        mma, layouts = mma_atoms(plan), smem_layouts(plan)
        return TmaTensors(
            q=_copy(make_tiled_tma_atom_A(load, mQ, layouts.q, plan.qk_tile, mma.qk)),
            k=_copy(make_tiled_tma_atom_B(load, mK, layouts.k, plan.qk_tile, mma.qk)),
            v=_copy(make_tiled_tma_atom_B(load, mV, layouts.v, plan.pv_tile, mma.pv)),
            o=boxes(store, mO, layouts.o, plan.o_box),
        )

    def _lse(self, read: ArgumentReader) -> cute.Tensor:
        """(Sq, H, B) view of the contiguous (B, H, Sq); without rows where no LSE is asked for."""
        rows, heads = read.int32("seqlen_q"), read.int32("heads_q")
        layout = cute.make_layout(
            (read.int32("lse_rows"), heads, read.int32("batch")),
            stride=(1, Int64(rows), Int64(rows) * heads),
        )
        return cute.make_tensor(read.pointer("lse", Float32, 4), layout)


def _copy(info: cpasync.TmaInfo) -> TmaTensor:
    return TmaTensor(info[0], info[1])


def argument_pointer(address: int) -> cute.Pointer:
    """What `ForwardHost.__call__` takes as `block`: the packed values at this address."""
    return make_ptr(Int64, address, cute.AddressSpace.generic, assumed_align=8)
