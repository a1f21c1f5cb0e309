"""Ways in which q, k, v lie in memory; gaps between the elements of a slice are NaN."""

from __future__ import annotations

from math import prod

import torch

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def contiguous(*tensors: torch.Tensor) -> Tensors:
    return tuple(t.contiguous() for t in tensors)


def transposed(*tensors: torch.Tensor) -> Tensors:
    """Stored as (batch, heads, length, head dim)."""
    return tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors)


def sequence_first(*tensors: torch.Tensor) -> Tensors:
    """Stored as (length, batch, heads, head dim)."""
    return tuple(t.transpose(0, 1).contiguous().transpose(0, 1) for t in tensors)


def fused(*tensors: torch.Tensor) -> Tensors:
    """k and v are slices of one projection; so is q when the lengths agree."""
    q, k, v = tensors
    if q.shape[:2] != k.shape[:2]:
        return (q.contiguous(), *_fuse(k, v))
    return _fuse(q, k, v)


def sliced(*tensors: torch.Tensor) -> Tensors:
    """Views into larger tensors, with bases that are aligned to 16 bytes only."""
    return tuple(_inside(t, (1, 3, 0, 8), (0, 2, 1, 8)) for t in tensors)


def unaligned(*tensors: torch.Tensor) -> Tensors:
    """Bases and strides that are no multiple of 16 bytes."""
    return tuple(_inside(t, (0, 0, 0, 1), (0, 0, 0, 2)) for t in tensors)


def shared_batch(*tensors: torch.Tensor) -> Tensors:
    """All batches read the keys and values of the first, through a stride of 0."""
    q, k, v = tensors
    return (q.contiguous(), *(t[:1].contiguous().expand(t.shape) for t in (k, v)))


def shared_heads(*tensors: torch.Tensor) -> Tensors:
    """All heads read the keys and values of the first, through a stride of 0."""
    q, k, v = tensors
    return (q.contiguous(), *(t[:, :, :1].contiguous().expand(t.shape) for t in (k, v)))


LAYOUTS = {
    f.__name__: f
    for f in (
        contiguous,
        transposed,
        sequence_first,
        fused,
        sliced,
        unaligned,
        shared_batch,
        shared_heads,
    )
}


def _fuse(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    widths = [prod(t.shape[2:]) for t in tensors]
    rows = torch.cat([t.flatten(2) for t in tensors], dim=-1)
    parts = rows.split(widths, dim=-1)
    return tuple(p.unflatten(-1, t.shape[2:]) for p, t in zip(parts, tensors, strict=True))


def _inside(t: torch.Tensor, before: tuple[int, ...], after: tuple[int, ...]) -> torch.Tensor:
    """`t` within a larger tensor of NaN that has so many elements more before and after it."""
    sizes = [b + n + a for b, n, a in zip(before, t.shape, after, strict=True)]
    larger = torch.full(sizes, torch.nan, dtype=t.dtype, device=t.device)
    view = larger[tuple(slice(b, b + n) for b, n in zip(before, t.shape, strict=True))]
    return view.copy_(t)
