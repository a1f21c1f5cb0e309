"""What a backward pass does with each score, pair by pair: FlashAttention-2, section 3.1.

P = 2^(scale S - LSE) is recomputed, dS = P (dP - delta) with delta = rowsum(O dO) - dLSE. With
softcap S is a tanh by then, and dS has its derivative 1 - tanh^2 as a factor.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32

from fa4.numerics.exp2 import exp2_mufu
from fa4.numerics.pairs import Pair, PairMath


def probabilities(math: PairMath, s: Pair, scale: Float32, lse: Pair) -> Pair:
    """2^(scale s - lse), LSE in log2 units."""
    return exp2_mufu(math.fma(s, (scale, scale), (-lse[0], -lse[1])))


def times_slope(math: PairMath, p: Pair, tanh: Pair) -> Pair:
    """p (1 - tanh^2). Hidden scores are -inf and their p is 0: the factor must not be infinite."""
    return math.mul(p, (_slope(tanh[0]), _slope(tanh[1])))


def score_gradients(math: PairMath, p: Pair, dp: Pair, delta: Pair) -> Pair:
    """p (dp - delta)."""
    return math.mul(p, math.sub(dp, delta))


def _slope(tanh: Float32) -> Float32:
    return cute.arch.fmax(cute.math.fma(-tanh, tanh, Float32(1.0)), Float32(0.0))
