"""Factors between what the MMA computes and what softmax means."""

from __future__ import annotations

from dataclasses import dataclass

from cutlass import Float32


@dataclass(frozen=True)
class Scales:
    """Factors of the scores that softmax sees: natural (softmax) and times log2 e (log2).

    With softcap those scores are tanh(softcap * q.k) and the factor is the cap; without, `softcap`
    is not read.
    """

    softmax: Float32
    log2: Float32
    softcap: Float32


@dataclass(frozen=True)
class GradientScales(Scales):
    """For a backward pass also the derivative of a score by q.k, leaving out that of tanh."""

    gradient: Float32
