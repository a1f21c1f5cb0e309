"""Softcap: scores become cap * tanh(scale * s / cap)."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from fa4.numerics.scales import Scales

TWO_LOG2_E = 2.8853900817779268


@cute.jit
def cap_scores(
    scores: cute.Tensor, span: cutlass.Constexpr[tuple[int, int]], scales: Scales
) -> None:
    """scores[span] -> tanh(scales.softcap * scores), in place; what follows multiplies by the cap.

    tanh(y) = 1 - 2 / (1 + e^2y): two MUFU operations and an absolute error of 1e-7, where
    tanh.approx would be off by 5e-4, times the cap.
    """
    inner = scales.softcap * TWO_LOG2_E
    for i in cutlass.range_constexpr(*span):
        power = cute.math.exp2(scores[i] * inner, fastmath=True)
        scores[i] = 1.0 - 2.0 * cute.arch.rcp_approx(1.0 + power)
