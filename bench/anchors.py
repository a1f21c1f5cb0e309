"""Counts of other kernels that were published or counted before, for machines without them."""

from __future__ import annotations

from dataclasses import dataclass

COUNTED = "counted in flash-attn-4 4.0.0b36 compiled with nvidia-cutlass-dsl 4.8.1 (ptxas 12.9.83)"
CUDNN = "counted in cuDNN's open-source prefill kernel"


@dataclass(frozen=True)
class Anchor:
    """One kernel's static counts; None where none is known.

    unmasked, masked: softmax loop per warp and 128 keys. mma: per 32 MMAs. correction: loop, both
    query tiles. source: where the numbers come from.
    """

    kernel: str
    unmasked: int | None
    masked: int | None
    ex2: int | None
    emulated: int | None
    mma: int | None
    correction: int | None
    source: str


ANCHORS = (
    Anchor("flash-attn-4 d64 full", 517, None, 113, 16, None, 107, COUNTED),
    Anchor("flash-attn-4 d128 full", 550, None, 105, 24, 245, 185, COUNTED),
    Anchor("flash-attn-4 d128 causal", 524, 698, 113, 16, 238, 186, COUNTED),
    Anchor("cuDNN d128", 442, None, 129, 0, 192, None, CUDNN),
)
