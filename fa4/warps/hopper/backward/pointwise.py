"""What Hopper's backward does with each score: P^T from S^T, dS^T from dP^T."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from fa4.numerics.pairs import PairMath, packed, unpacked
from fa4.numerics.scales import Scales
from fa4.numerics.score_gradients import probabilities, score_gradients, times_slope
from fa4.numerics.softcap import cap_scores
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.accumulator import ROW_STEP, ROWS_PER_THREAD, accumulator_row, hide_row
from fa4.tiles.query_range import QueryVisibility
from fa4.tiles.registers import pinned
from fa4.warps.hopper.backward.fragments import Fragments, Place

MATH = PairMath(packed=False)


@dataclass(frozen=True)
class Pointwise:
    """What a thread does: keys from `key0` on, the part'th queries of a block, see its place."""

    plan: HopperBackwardPlan
    scales: Scales
    visibility: QueryVisibility
    place: Place
    key0: Int32

    @cute.jit
    def probabilities(self, f: Fragments, lse: cute.Tensor, block: Int32, masked: Boolean) -> None:
        """P^T = 2^(scale S - LSE): rounded in f.p; exact in f.s, there times dtanh with softcap."""
        plan, s, p = self.plan, f.s, f.p
        for r in cutlass.range_constexpr(ROWS_PER_THREAD):
            if cutlass.const_expr(plan.softcap):
                row = accumulator_row(s, r)
                cap_scores(row, (0, cute.size(row)), self.scales)
        if masked:
            row0 = block * plan.m_tile + self.place.part * plan.scores_tile[1]
            thread = pinned(self.place.thread)  # what follows from it takes no registers elsewhere
            key = self.key0 + thread // 32 * 16 + thread % 32 // 4
            for r in cutlass.range_constexpr(ROWS_PER_THREAD):
                mask = self.visibility.mask(key + ROW_STEP * r, row0)
                hide_row(accumulator_row(s, r), mask, thread)
        words, stats, a = _words(p), self._of_columns(lse), self.scales.log2
        for i in cutlass.range_constexpr(0, cute.size(s), 2):
            if cutlass.const_expr(i % 4 == 0):
                low, high = _pair(stats, i // 4)
            pair = probabilities(MATH, (s[i], s[i + 1]), a, (low, high))
            words[i // 2] = packed(*pair, plan.dtype)
            if cutlass.const_expr(plan.softcap):
                pair = times_slope(MATH, pair, (s[i], s[i + 1]))
            s[i], s[i + 1] = pair

    @cute.jit
    def grad_scores(self, f: Fragments, delta: cute.Tensor) -> None:
        """f.ds = dS^T = P^T (dP^T - delta), rounded."""
        dp, p, stats = f.dp, _words(f.p), self._of_columns(delta)
        words = _words(f.ds)
        for i in cutlass.range_constexpr(0, cute.size(dp), 2):
            if cutlass.const_expr(i % 4 == 0):
                low, high = _pair(stats, i // 4)
            pair = (f.s[i], f.s[i + 1])
            if cutlass.const_expr(self.plan.tuning.rounded_p):
                pair = unpacked(p[i // 2], self.plan.dtype)
            pair = score_gradients(MATH, pair, (dp[i], dp[i + 1]), (low, high))
            words[i // 2] = packed(*pair, self.plan.dtype)

    def _of_columns(self, values: cute.Tensor) -> cute.Tensor:
        """(2, pairs) view of the values of the thread's queries."""
        pairs = self.plan.scores_tile[1] // 8
        first = self.place.part * self.plan.scores_tile[1] + self.place.thread % 4 * 2
        return cute.make_tensor(
            values.iterator + cute.assume(first, divby=2),
            cute.make_layout((2, pairs), stride=(1, 8)),
        )


def _pair(values: cute.Tensor, column: int) -> tuple[Float32, Float32]:
    """One pair, where it is needed: all of them would take as many registers as half of P."""
    registers = cute.make_rmem_tensor(2, Float32)
    cute.autovec_copy(values[None, column], registers)
    return registers[0], registers[1]


def _words(halves: cute.Tensor) -> cute.Tensor:
    """The registers of 16-bit pairs."""
    pointer = cute.recast_ptr(halves.iterator, dtype=Int32)
    return cute.make_tensor(pointer, cute.make_layout(cute.size(halves) // 2))
