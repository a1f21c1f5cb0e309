"""First kernel of a backward pass: what each query row needs, and zeros to count and add from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from fa4.plan_backward_base import BackwardPlan
from fa4.tiles.backward_bundles import BackwardRows, RowBlock
from fa4.tiles.dq_sum import VECTOR

THREADS = 256
LOAD = 8  # 16-bit elements: 16 bytes


@dataclass(frozen=True)
class ForwardResults:
    """O and dO (Sq, Dv, H, B), LSE and its gradient (Sq, H, B); the latter is read if it exists."""

    o: cute.Tensor
    do: cute.Tensor
    lse: cute.Tensor
    dlse: cute.Tensor
    has_dlse: Int32


@dataclass(frozen=True)
class Preprocess:
    """One CTA per block of query rows: delta = rowsum(O dO) - dLSE, LSE in log2 units.

    Rows that see no key, and those beyond the sequence, get LSE = +inf and delta = 0: their P, and
    so all of their gradients, are 0 then.
    """

    plan: BackwardPlan

    @property
    def lanes(self) -> int:
        """Lanes that share a row: a power of two."""
        return 1 << math.ceil(math.log2(self.plan.head_dim_v // LOAD))

    @cute.kernel
    def kernel(self, given: ForwardResults, rows: BackwardRows) -> None:
        """Grid: blocks of rows, then heads, then batch, in one dimension."""
        number, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        at = rows.block(number)
        cute.arch.griddepcontrol_launch_dependents()
        self._clear(rows.dq[None, at.index, at.head, at.batch], thread)
        if cutlass.const_expr(self.plan.deterministic):
            self._count_from_zero(rows.turns, at, thread)
        if cutlass.const_expr(self.plan.persistent):
            self._no_tile_is_taken(rows.counter, (number == 0) & (thread == 0))
        per_pass = THREADS // self.lanes
        for i in cutlass.range_constexpr(self.plan.m_tile // per_pass):
            row = at.index * self.plan.m_tile + i * per_pass + thread // self.lanes
            column = thread % self.lanes * LOAD
            product = self._product(given, row, at.head, at.batch, column)
            product = cute.arch.warp_reduction_sum(product, threads_in_group=self.lanes)
            if thread % self.lanes == 0:
                lse, delta = self._statistics(given, row, at.head, at.batch, product)
                rows.lse[row, at.head, at.batch] = lse
                rows.delta[row, at.head, at.batch] = delta

    @cute.jit
    def _clear(self, block: cute.Tensor, thread: Int32) -> None:
        zeros = cute.make_rmem_tensor(VECTOR, Float32)
        zeros.fill(0.0)
        vectors = cute.zipped_divide(block, (VECTOR,))
        for i in cutlass.range_constexpr(self.plan.dq_block_floats // (VECTOR * THREADS)):
            cute.autovec_copy(zeros, vectors[None, i * THREADS + thread])

    @cute.jit
    def _count_from_zero(self, turns: cute.Tensor, at: RowBlock, thread: Int32) -> None:
        if thread < self.plan.turns:
            turns[thread, at.index, at.head, at.batch] = 0

    @cute.jit
    def _no_tile_is_taken(self, counter: cute.Tensor, once: Boolean) -> None:
        if once:
            counter[0] = 0

    @cute.jit
    def _product(
        self, given: ForwardResults, row: Int32, head: Int32, batch: Int32, column: Int32
    ) -> Float32:
        """This lane's part of the row's O dO."""
        total = Float32(0.0)
        if (row < cute.size(given.o, mode=[0])) & (column < cute.size(given.o, mode=[1])):
            o = self._load(given.o[row, None, head, batch], column)
            do = self._load(given.do[row, None, head, batch], column)
            for i in cutlass.range_constexpr(LOAD):
                total += o[i].to(Float32) * do[i].to(Float32)
        return total

    def _load(self, row: cute.Tensor, column: Int32) -> cute.Tensor:
        source = cute.make_tensor(
            row.iterator + cute.assume(column, divby=LOAD), cute.make_layout(LOAD)
        )
        registers = cute.make_rmem_tensor(LOAD, row.element_type)
        cute.autovec_copy(source, registers)
        return registers

    @cute.jit
    def _statistics(
        self, given: ForwardResults, row: Int32, head: Int32, batch: Int32, product: Float32
    ) -> tuple[Float32, Float32]:
        """LSE in log2 units and delta of a row."""
        lse, delta = Float32.inf, Float32(0.0)
        if row < cute.size(given.lse, mode=[0]):
            natural = given.lse[row, head, batch]
            if natural != -Float32.inf:
                lse = natural * math.log2(math.e)
                delta = product
                if given.has_dlse != 0:
                    delta -= given.dlse[row, head, batch]
        return lse, delta
