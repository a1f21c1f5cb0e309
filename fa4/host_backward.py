"""Host side of the backward kernels, compiled with them: TMA descriptors, grids, three launches."""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from fa4.arguments import BACKWARD_INTEGERS, BACKWARD_NUMBERS
from fa4.backward import Backward
from fa4.hopper_backward import HopperBackward
from fa4.host import ArgumentReader
from fa4.numerics.scales import GradientScales
from fa4.plan_backward_base import BackwardPlan
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.backward_bundles import BackwardRows, BackwardTma
from fa4.tiles.backward_layouts import BlackwellDq, backward_layouts
from fa4.tiles.block_range import Visibility
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

    def per_row(self, name: str) -> cute.Tensor:
        """(Sq, H, B) view of the contiguous floats (B, H, Sq)."""
        rows, heads = self.int32("seqlen_q"), self.int32("heads_q")
        layout = cute.make_layout(
            (rows, heads, self.int32("batch")), stride=(1, Int64(rows), Int64(rows) * heads)
        )
        return cute.make_tensor(self.pointer(name, Float32, 4), layout)


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
        if cutlass.const_expr(not self._on_hopper):
            kernel, tiles = Backward(plan), BlackwellDq(plan)
        first, main, last = Preprocess(plan).kernel, kernel.kernel, Postprocess(plan, tiles)
        self._launch(first, "_rows", (self._given(read), rows), (blocks, THREADS), stream)
        copies = self._copies(read)
        ctas = work.schedule.num_tiles
        if cutlass.const_expr(plan.persistent):
            ctas = cutlass.min(ctas, read.int32("num_ctas"))
        self._launch(main, "", (copies, rows, work, scales), (ctas, plan.threads), stream)
        dq = self._copy(read, "dq", tiles.layout, plan.q_box)
        self._launch(last.kernel, "_dq", (dq, rows, scales), (blocks, last.threads), stream)

    @property
    def _on_hopper(self) -> bool:
        return isinstance(self.plan, HopperBackwardPlan)

    def _launch(
        self,
        kernel: object,
        suffix: str,
        arguments: tuple,
        grid: tuple[Int32, int],
        stream: cuda.CUstream,
    ) -> None:
        """grid: (CTAs, threads of each)."""
        # With "cutlass" in its entry name ptxas generates different code
        kernel.set_name_prefix(
            self.plan.name + suffix, remove_cutlass_symbol=True, keep_mangled_name=False
        )
        kernel(*arguments).launch(
            grid=[grid[0], 1, 1],
            block=[grid[1], 1, 1],
            stream=stream,
            min_blocks_per_mp=1,  # without it ptxas ignores setmaxnreg
            use_pdl=suffix != "_rows",  # starts in the wake of the kernel before, which it awaits
        )

    def _work(self, read: BackwardReader) -> BackwardWork:
        plan = self.plan
        see = Visibility(
            seqlen_q=read.int32("seqlen_q"),
            seqlen_k=read.int32("seqlen_k"),
            left=read.int32("left"),
            right=read.int32("right"),
            left_bound=plan.left_bound,
            right_bound=plan.right_bound,
            n_block=plan.n_block,
        )
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
        layouts = hopper_backward_layouts(plan) if self._on_hopper else backward_layouts(plan)
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
        stored = name in ("dq", "dk", "dv")
        operation = (
            cpasync.CopyBulkTensorTileS2GOp() if stored else cpasync.CopyBulkTensorTileG2SOp()
        )
        tensor = read.tensor(name, shape, DTYPES[self.plan.dtype])
        one = cute.select(layout, mode=[0, 1])
        info = cpasync.make_tiled_tma_atom(operation, tensor, one, box)
        return TmaTensor(info[0], info[1])
