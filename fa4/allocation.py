"""Memory for results, on the current device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda

Memory = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides, dtype."""

# What torch's compiled graphs allocate with: half the price of a call of torch.empty_strided
EMPTY: dict[str, Callable[..., torch.Tensor]] = {
    "cpu": _empty_strided_cpu,
    "cuda": _empty_strided_cuda,
}
"""By type of device: the parts of a `Memory` -> uninitialized tensor on the current one."""


def index_of(device: torch.device) -> int | None:
    """Of a CUDA device, which must be the current one for its allocations and launches."""
    return device.index if device.type == "cuda" else None


def is_elsewhere(index: int | None) -> bool:
    """Whether another CUDA device than this is the current one; runs on every call."""
    # the function behind torch.cuda.current_device, at a tenth of the price
    return index is not None and torch._C._cuda_getDevice() != index
