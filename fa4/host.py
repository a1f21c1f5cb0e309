"""Host side of the forward kernel, compiled with it: TMA descriptors, schedule, grid, launch."""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import make_tiled_tma_atom_A, make_tiled_tma_atom_B

from fa4.forward import Forward
from fa4.hopper import HopperForward
from fa4.host_base import LOAD, STORE, ArgumentReader, launch_kernel, tma_boxes, tma_tensor
from fa4.numerics.scales import Scales
from fa4.plan_base import BasePlan
from fa4.plan_hopper import HopperPlan
from fa4.tiles.bundles import TmaTensors
from fa4.tiles.hopper_layouts import hopper_layouts
from fa4.tiles.layouts import DTYPES, mma_atoms, smem_layouts
from fa4.tiles.scheduler import tile_schedule
from fa4.warps.work import Work


@dataclass(frozen=True)
class ForwardHost:
    """`__call__` is what gets compiled."""

    plan: BasePlan

    @cute.jit
    def __call__(self, block: cute.Pointer, stream: cuda.CUstream) -> None:
        """Launch the kernel on the packed values (`fa4.arguments`) at `block` in host memory."""
        read = ArgumentReader(block)
        visibility = read.visibility(self.plan)
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
        copies, lse = self._copies(*tensors), read.per_row("lse", "lse_rows")
        kernel, arguments = Forward(self.plan).kernel, (copies, lse, work, scales)
        if cutlass.const_expr(isinstance(self.plan, HopperPlan)):
            counter = read.pointer("tile_counter", Int32, 4)
            kernel = HopperForward(self.plan).kernel
            arguments = (copies, lse, counter, work, scales)
        grid = (read.ctas(self.plan, schedule.num_tiles), self.plan.threads)
        launch_kernel(kernel, self.plan.name, arguments, grid, stream)

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
        if isinstance(plan, HopperPlan):
            layouts = hopper_layouts(plan)
            return TmaTensors(
                q=tma_boxes(LOAD, mQ, layouts.q, plan.q_box),
                k=tma_boxes(LOAD, mK, layouts.k, plan.k_box),
                v=tma_boxes(LOAD, mV, layouts.v, plan.v_box),
                o=tma_boxes(STORE, mO, layouts.o, plan.o_box),
            )
        mma, layouts = mma_atoms(plan), smem_layouts(plan)
        return TmaTensors(
            q=tma_tensor(make_tiled_tma_atom_A(LOAD(), mQ, layouts.q, plan.qk_tile, mma.qk)),
            k=tma_tensor(make_tiled_tma_atom_B(LOAD(), mK, layouts.k, plan.qk_tile, mma.qk)),
            v=tma_tensor(make_tiled_tma_atom_B(LOAD(), mV, layouts.v, plan.pv_tile, mma.pv)),
            o=tma_boxes(STORE, mO, layouts.o, plan.o_box),
        )
