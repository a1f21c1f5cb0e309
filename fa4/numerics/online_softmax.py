"""Online softmax of one row per thread, with the rescale of O made conditional.

P = 2^(a (s - m)) with a = scale * log2 e. The result O / l does not depend on the reference m, so m
may lag behind the true running maximum as long as nothing overflows: while the maximum has grown by
no more than `threshold` (in log2 units) m stays, and O needs no rescale.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Boolean, Float32

from fa4.numerics.exp2 import exp2_fma, exp2_mufu
from fa4.numerics.pairs import Pair, PairMath

CHAINS = 2  # independent chains of maxima, and of packed sums: a step has a latency of 4 cycles


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
    math: PairMath

    @cute.jit
    def update_maximum(
        self, row: RowState, maximum: Float32, scale_log2: Float32
    ) -> tuple[RowState, Float32]:
        """Take in the maximum of all scores so far; returns the factor for O and the old sum."""
        exponent = (row.maximum - RowState(maximum, row.total).reference()) * scale_log2
        factor = cute.math.exp2(exponent, fastmath=True)
        if exponent >= -self.threshold:
            maximum = row.maximum
            factor = Float32(1.0)
        return RowState(maximum, row.total * factor), factor

    def exponentiate(
        self, scores: cute.Tensor, span: tuple[int, int], scale_log2: Float32, bias: Float32
    ) -> None:
        """scores[span] -> 2^(scale_log2 * scores + bias), in place."""
        for i in range(*span, 2):
            pair = (scores[i], scores[i + 1])
            x = self.math.fma(pair, (scale_log2, scale_log2), (bias, bias))
            if self._emulates(i):
                scores[i], scores[i + 1] = exp2_fma(x, self.exp2_degree)
            else:
                scores[i], scores[i + 1] = exp2_mufu(x)

    def _emulates(self, i: int) -> bool:
        """Whether the pair at key i of a block runs on FMA units: by its place alone."""
        pairs, pair = self.exp2_emulated // 2, i // 2
        return (pair + 1) * pairs // 64 > pair * pairs // 64


@dataclass(frozen=True)
class FixedReference:
    """The strategy that freezes the reference after the first blocks: no maximum, no rescale.

    O / l is right for any reference as long as nothing overflows, which is seen in the end. P in
    bfloat16 has the exponents of float32: the reference may lag by about 2^100.
    A row that a late key dominates is right but coarse: that key's P is rounded to bfloat16 where
    it would be exactly 1, while l is not, nor may it be, since the LSE is made from it. Such a key
    makes the row's sum jump. Then the reference moves to it, as a running maximum would.
    """

    limit: float = 2.0**100
    # A jump of 32 leaves 3 % for other keys: P is rounded by as much at any reference then. The
    # first rows under a causal mask have few keys, and many later ones of some size each: with an
    # offset of 32 too, d64 at 512 keys lost 5 % on an H200 to moves that change nothing.
    growth: float = 32.0
    offset: float = 512.0

    def outgrown(self, total: Float32, added: Float32) -> Boolean:
        """Whether a block adds far more to a row's sum than it was; P of the reference is 1."""
        return added > cute.math.fma(total, Float32(self.growth), Float32(self.offset))

    @cute.jit
    def moved(
        self, row: RowState, top: Float32, jump: Float32, scale_log2: Float32
    ) -> tuple[RowState, Float32]:
        """The row with its reference at the largest P of a block, `top`, if `jump` is not 0.

        Returns the factor for O, the sum and P too. A `top` out of range, whose inverse may be
        flushed to 0, makes the sum infinite: the row does not hold.
        """
        factor, maximum, total = Float32(1.0), row.maximum, row.total
        if jump != 0.0:
            factor = cute.arch.rcp_approx(top)
            maximum = row.maximum + cute.math.log2(top, fastmath=True) / scale_log2
            total = row.total * factor
            if not top < self.limit:
                total = Float32.inf
        return RowState(maximum, total), factor

    @cute.jit
    def holds(self, row: RowState, sees_a_key: Boolean) -> Boolean:
        """Whether the row came out right: a finite sum, and a reference taken from a key."""
        in_range = row.total < self.limit  # false for NaN
        has_reference = row.maximum != -Float32.inf
        return in_range & (has_reference | ~sees_a_key)


@dataclass(frozen=True)
class RowMaximum:
    """Maximum of a row's scores, taken in chunk by chunk."""

    chains: cute.Tensor  # (CHAINS,)

    def take(self, scores: cute.Tensor, span: tuple[int, int]) -> None:
        """Take in scores[span]; max of three is one instruction."""
        for step, i in enumerate(range(*span, 2)):
            chain = step % CHAINS
            pair = cute.arch.fmax(scores[i], scores[i + 1])
            self.chains[chain] = cute.arch.fmax(self.chains[chain], pair)

    def value(self) -> Float32:
        """Maximum of everything taken in."""
        return cute.arch.fmax(self.chains[0], self.chains[1])


def row_maximum(start: Float32) -> RowMaximum:
    """A maximum that starts at `start`."""
    chains = cute.make_rmem_tensor(CHAINS, Float32)
    for i in range(CHAINS):
        chains[i] = start
    return RowMaximum(chains)


@dataclass(frozen=True)
class RowTotal:
    """Sum of a row's P, taken in chunk by chunk."""

    chains: cute.Tensor  # (2 CHAINS,): pairs
    math: PairMath

    def take(self, p: cute.Tensor, span: tuple[int, int]) -> None:
        """Take in p[span]."""
        for step, i in enumerate(range(*span, 2)):
            self._add(step % CHAINS, (p[i], p[i + 1]))

    def value(self) -> Float32:
        """Sum of everything taken in."""
        self._add(0, self._pair(1))
        return self.chains[0] + self.chains[1]

    def _pair(self, chain: int) -> Pair:
        return self.chains[2 * chain], self.chains[2 * chain + 1]

    def _add(self, chain: int, pair: Pair) -> None:
        total = self.math.add(self._pair(chain), pair)
        self.chains[2 * chain], self.chains[2 * chain + 1] = total


def row_total(start: Float32, math: PairMath) -> RowTotal:
    """A sum that starts at `start`."""
    chains = cute.make_rmem_tensor(2 * CHAINS, Float32)
    for i in range(2 * CHAINS):
        chains[i] = start if i == 0 else Float32(0.0)
    return RowTotal(chains, math)


@cute.jit
def inverse_total(total: Float32) -> Float32:
    """1 / l, or 0 for a row without keys."""
    inverse = cute.arch.rcp_approx(total)
    return inverse if total != 0.0 else Float32(0.0)


@cute.jit
def log_sum_exp(row: RowState, scale: Float32) -> Float32:
    """ln sum exp(scale * s), natural log; -inf for a row without keys."""
    lse = row.maximum * scale + cute.math.log(row.total, fastmath=True)
    return lse if row.total != 0.0 else -Float32.inf
