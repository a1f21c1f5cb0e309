"""Online softmax of one row per thread, with the rescale of O made conditional.

P = 2^(a (s - m)) with a = scale * log2 e. The result O / l does not depend on the reference m, so m
may lag behind the true running maximum as long as nothing overflows: while the maximum has grown by
no more than `threshold` (in log2 units) m stays, and O needs no rescale.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32

from fa4.numerics.exp2 import exp2_fma, exp2_mufu


@dataclass(frozen=True)
class RowState:
    """Running reference maximum (of unscaled scores) and running sum of P."""

    maximum: Float32
    total: Float32

    @cute.jit
    def reference(self) -> Float32:
        """What P's exponent subtracts: the maximum, or 0 for a row that has seen no key."""
        return self.maximum if self.maximum != -Float32.inf else Float32(0.0)


def new_row() -> RowState:
    """A row that has seen no key."""
    return RowState(-Float32.inf, Float32(0.0))


@dataclass(frozen=True)
class RunningMax:
    """The strategy that keeps the running maximum, rescaling lazily (0: whenever it grows)."""

    threshold: float
    exp2_degree: int
    exp2_emulated: int  # per 128 elements, spread evenly

    @cute.jit
    def update_maximum(
        self, row: RowState, scores: cute.Tensor, scale_log2: Float32
    ) -> tuple[RowState, Float32]:
        """Take in a block's scores; returns the row and the factor for O and the old sum."""
        maximum = _row_maximum(scores, row.maximum)
        grown = RowState(maximum, row.total)
        exponent = (row.maximum - grown.reference()) * scale_log2
        factor = cute.math.exp2(exponent, fastmath=True)
        if exponent >= -self.threshold:
            maximum = row.maximum
            factor = Float32(1.0)
        return RowState(maximum, row.total * factor), factor

    def exponentiate(
        self, scores: cute.Tensor, first: int, last: int, scale_log2: Float32, bias: Float32
    ) -> None:
        """scores[first:last] -> 2^(scale_log2 * scores + bias), in place."""
        for i in range(first, last, 2):
            x = cute.arch.fma_packed_f32x2(
                (scores[i], scores[i + 1]), (scale_log2, scale_log2), (bias, bias)
            )
            if self._emulates(i):
                scores[i], scores[i + 1] = exp2_fma(x, self.exp2_degree)
            else:
                scores[i], scores[i + 1] = exp2_mufu(x)

    def _emulates(self, i: int) -> bool:
        """Whether the pair at key i of a block runs on FMA units: by its place alone."""
        pairs, pair = self.exp2_emulated // 2, i // 2
        return (pair + 1) * pairs // 64 > pair * pairs // 64


def add_to_total(row: RowState, scores: cute.Tensor) -> RowState:
    """Add a block's P to the row's sum: four packed accumulators, then a tree."""
    sums = [(scores[i], scores[i + 1]) for i in range(0, 8, 2)]
    sums[0] = cute.arch.add_packed_f32x2(sums[0], (row.total, Float32(0.0)))
    for i in range(8, cute.size(scores), 2):
        lane = (i // 2) % 4
        sums[lane] = cute.arch.add_packed_f32x2(sums[lane], (scores[i], scores[i + 1]))
    a = cute.arch.add_packed_f32x2(sums[0], sums[1])
    b = cute.arch.add_packed_f32x2(sums[2], sums[3])
    a = cute.arch.add_packed_f32x2(a, b)
    return RowState(row.maximum, a[0] + a[1])


def _row_maximum(scores: cute.Tensor, start: Float32) -> Float32:
    """Maximum of a row: four chains, two elements a step (ptxas makes FMNMX3 of them)."""
    chains = [start, scores[0], scores[1], scores[2]]
    rest = list(range(3, cute.size(scores)))
    for step, i in enumerate(range(0, len(rest) - 1, 2)):
        a, b = scores[rest[i]], scores[rest[i + 1]]
        lane = step % 4
        chains[lane] = cute.arch.fmax(chains[lane], cute.arch.fmax(a, b))
    if len(rest) % 2:
        chains[0] = cute.arch.fmax(chains[0], scores[rest[-1]])
    low = cute.arch.fmax(chains[0], chains[1])
    return cute.arch.fmax(low, cute.arch.fmax(chains[2], chains[3]))


@cute.jit
def inverse_total(row_total: Float32) -> Float32:
    """1 / l, or 0 for a row without keys."""
    inverse = cute.arch.rcp_approx(row_total)
    return inverse if row_total != 0.0 else Float32(0.0)


@cute.jit
def log_sum_exp(row: RowState, scale: Float32) -> Float32:
    """ln sum exp(scale * s), natural log; -inf for a row without keys."""
    lse = row.maximum * scale + cute.math.log(row.total, fastmath=True)
    return lse if row.total != 0.0 else -Float32.inf
