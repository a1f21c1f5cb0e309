"""What a TMA tensor map can describe, and what is done about tensors that it cannot."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import torch

logger = logging.getLogger("fa4")

TMA_ALIGNMENT = 16  # bytes, of the base address and of every stride but the last
TMA_STRIDE_LIMIT = 2**40  # bytes: the width of a stride in a tensor map


def addressable(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself, a view with legal strides, or a contiguous copy that TMA can address."""
    if tma_obstacle(tensor) is None:
        return tensor
    view = with_plain_strides(tensor)
    reason = tma_obstacle(view)
    if reason is None:
        return view
    logger.debug("%s %s is copied: %s", name, tuple(tensor.shape), reason)
    return tensor.clone(memory_format=torch.contiguous_format)


def tma_obstacle(tensor: torch.Tensor) -> str | None:
    """Why a TMA tensor map cannot describe the tensor; None if it can."""
    if tensor.data_ptr() % TMA_ALIGNMENT:
        return f"its address is no multiple of {TMA_ALIGNMENT} bytes"
    return stride_obstacle(tensor.stride(), tensor.element_size())


def stride_obstacle(strides: tuple[int, ...], size: int) -> str | None:
    """Why these strides, of elements of `size` bytes, cannot stand in a TMA tensor map."""
    for stride in strides[:-1]:
        if (stride * size) % TMA_ALIGNMENT:
            return f"its strides {strides} are no multiples of {TMA_ALIGNMENT} bytes"
        if stride * size >= TMA_STRIDE_LIMIT:
            return f"its strides {strides} reach 2^40 bytes"
    return None


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """In elements, of a contiguous tensor; as torch counts, an empty dimension is one of size 1."""
    return tuple(accumulate((max(n, 1) for n in reversed(shape[1:])), mul, initial=1))[::-1]


def with_plain_strides(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements; dimensions of size 1, whose stride means nothing, get stride 0."""
    strides = [0 if n == 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, [*strides[:-1], 1])
