"""Host side of the backward kernels, compiled with them: TMA descriptors, grids, three launches."""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from fa4.arguments import BACKWARD_INTEGERS, BACKWARD_NUMBERS
from fa4.backward import Backward
from fa4.hopper_backward import HopperBackward
from fa4.host_base import LOAD, STORE, ArgumentReader, launch_kernel, tma_boxes
from fa4.numerics.scales import GradientScales
from fa4.plan_backward_base import BackwardPlan
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.backward_bundles import BackwardRows, BackwardTma
from fa4.tiles.backward_layouts import BlackwellDq, backward_layouts
from fa4.tiles.bundles import TmaTensor
from fa4.tiles.dq_sum import dq_layout
from fa4.tiles.hopper_backward_layouts import hopper_backward_layouts
from fa4.tiles.hopper_dq import HopperDq
from fa4.tiles.layouts import DTYPES
from fa4.tiles.query_range import QueryVisibility
from fa4.tiles.scheduler import tile_schedule
from fa4.warps.backward.postprocess import Postprocess
from fa4.warps.backward.preprocess import THREADS, ForwardResults, Preprocess
from fa4.warps.backward.work import BackwardWork


class BackwardReader(ArgumentReader):
    """Reads the argument block of a backward launch."""

    integers, numbers = BACKWARD_INTEGERS, BACKWARD_NUMBERS


@dataclass(frozen=True)
class BackwardHost:
    """`__call__` is what gets compiled."""

    plan: BackwardPlan

    @cute.jit
    def __call__(self, block: cute.Pointer, stream: cuda.CUstream) -> None:
        """Launch the kernels on the packed values at `block` in host memory."""
        plan, read = self.plan, BackwardReader(block)
        rows, work = self._rows(read), self._work(read)
        scales = GradientScales(
            softmax=read.float32("softmax_scale"),
            log2=read.float32("scale_log2"),
            softcap=read.float32("softcap"),
            gradient=read.float32("gradient_scale"),
        )
        _, *sizes = rows.dq.shape  # (floats, blocks, heads, batch): 32 bits do not count floats
        blocks = sizes[0] * sizes[1] * sizes[2]
        kernel, tiles = HopperBackward(plan), HopperDq(plan)
        if cutlass.const_expr(not self._has_hopper_plan):
            kernel, tiles = Backward(plan), BlackwellDq(plan)
        first, main, last = Preprocess(plan).kernel, kernel.kernel, Postprocess(plan, tiles)
        given, grid = (self._given(read), rows), (blocks, THREADS)
        launch_kernel(first, plan.name + "_rows", given, grid, stream)
        # the others start in the wake of the kernel before, which they await
        given = self._copies(read), rows, work, scales
        grid = read.ctas(plan, work.schedule.num_tiles), plan.threads
        launch_kernel(main, plan.name, given, grid, stream, use_pdl=True)
        given = self._copy(read, "dq", tiles.layout, plan.q_box), rows, scales
        launch_kernel(
            last.kernel, plan.name + "_dq", given, (blocks, last.threads), stream, use_pdl=True
        )

    @property
    def _has_hopper_plan(self) -> bool:
        return isinstance(self.plan, HopperBackwardPlan)

    def _work(self, read: BackwardReader) -> BackwardWork:
        plan = self.plan
        see = read.visibility(plan)
        heads_kv = read.int32("heads_kv")
        schedule = tile_schedule(
            num_m=(see.seqlen_k + plan.n_block - 1) // plan.n_block,
            heads=heads_kv,
            heads_kv=heads_kv,
            batch=read.int32("batch"),
            sections=(read.int32("section"), read.int32("last_section")),
            # The first keys are seen by the most rows: longest first. But where they add to dQ in a
            # fixed order, the last one first, a tile must come after those it waits for; and since
            # each walks queries downwards, those of a causal mask are ahead of it all the time.
            descending=plan.deterministic,
        )
        visibility = QueryVisibility(see, plan.m_tile)
        return BackwardWork(schedule, visibility, read.int32("heads_q") // heads_kv)

    def _rows(self, read: BackwardReader) -> BackwardRows:
        m, floats = self.plan.m_tile, self.plan.dq_block_floats
        blocks = (read.int32("seqlen_q") + m - 1) // m
        heads, batch = read.int32("heads_q"), read.int32("batch")

        def per_row(name: str) -> cute.Tensor:
            padded = cute.assume(Int64(blocks) * m, divby=m)
            layout = cute.make_layout(
                (blocks * m, heads, batch), stride=(1, padded, padded * heads)
            )
            return cute.make_tensor(read.pointer(name, Float32, 16), layout)

        layout = dq_layout(floats, (blocks, heads, batch))
        dq = cute.make_tensor(read.pointer("dq_sum", Float32, 16), layout)
        turns = None
        if cutlass.const_expr(self.plan.deterministic):
            layout = cute.make_layout((self.plan.turns, blocks, heads, batch))
            turns = cute.make_tensor(read.pointer("turns", Int32, 4), layout)
        counter = None
        if cutlass.const_expr(self.plan.persistent):
            counter = read.pointer("tile_counter", Int32, 4)
            counter = cute.make_tensor(counter, cute.make_layout(1))
        return BackwardRows(per_row("lse_log2"), per_row("delta"), dq, turns, counter)

    def _given(self, read: BackwardReader) -> ForwardResults:
        dtype = DTYPES[self.plan.dtype]
        shape = ("seqlen_q", "head_dim_v", "heads_q", "batch")
        return ForwardResults(
            o=read.tensor("o", shape, dtype),
            do=read.tensor("do", shape, dtype),
            lse=read.per_row("lse"),
            dlse=read.per_row("dlse"),
            has_dlse=Int32(read.int64("dlse") != 0),
        )

    def _copies(self, read: BackwardReader) -> BackwardTma:
        plan = self.plan
        layouts = hopper_backward_layouts(plan) if self._has_hopper_plan else backward_layouts(plan)
        k_box, v_box = (plan.key_rows, plan.head_dim), (plan.key_rows, plan.head_dim_v)

        def copy(name: str, layout: cute.ComposedLayout, box: tuple[int, int]) -> TmaTensor:
            return self._copy(read, name, layout, box)

        return BackwardTma(
            q=copy("q", layouts.q, plan.q_box),
            do=copy("do", layouts.do, plan.o_box),
            k=copy("k", layouts.k, k_box),
            v=copy("v", layouts.v, v_box),
            dk=copy("dk", layouts.dk, (plan.gradient_rows, plan.head_dim)),
            dv=copy("dv", layouts.dv, (plan.gradient_rows, plan.head_dim_v)),
        )

    def _copy(
        self,
        read: BackwardReader,
        name: str,
        layout: cute.ComposedLayout,
        box: tuple[int, int],
    ) -> TmaTensor:
        """TMA of a tensor by boxes of (rows, columns); gradients of inputs are stored."""
        of_keys, wide = name[-1] in "kv", name[-1] in "ov"
        shape = (
            "seqlen_k" if of_keys else "seqlen_q",
            "head_dim_v" if wide else "head_dim",
            "heads_kv" if of_keys else "heads_q",
            "batch",
        )
        tensor = read.tensor(name, shape, DTYPES[self.plan.dtype])
        return tma_boxes(STORE if name in ("dq", "dk", "dv") else LOAD, tensor, layout, box)
