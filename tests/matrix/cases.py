"""Cases of the forward matrix: which are drawn, and tensors in the layouts that callers use."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

HEAD_DIMS = {
    "sm_100a": ((64, 64), (72, 72), (96, 96), (128, 128), (192, 128)),
    "sm_90a": ((64, 64), (72, 72), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)),
}
DTYPES = ("bfloat16", "float16")
MASKS = ("full", "causal", "window", "softcap")
LENGTHS = (1, 63, 128, 129, 256, 333, 640, 0)
HEADS = ((1, 1), (4, 4), (4, 2), (8, 1), (6, 2))
WINDOWS = ((0, 0), (17, 0), (64, 32), (200, 5), (128, 127), (30, -1), (None, 40))
SOFTCAPS = (2.0, 15.0, 50.0)
SHORT = len(LENGTHS)  # first cases of a group: they have each seqlen_q and each seqlen_k once

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One call of `flash_attn_func`: sizes, options, and how its tensors lie in memory."""

    arch: str
    head_dims: tuple[int, int]
    dtype: str
    lengths: tuple[int, int]
    heads: tuple[int, int]
    batch: int
    layout: str
    options: dict[str, object]

    def __str__(self) -> str:
        sizes = "x".join(map(str, (self.batch, *self.lengths, *self.heads, *self.head_dims)))
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        text = f"{self.arch}-{self.dtype}-{sizes}-{self.layout}-{options or 'full'}"
        return text.replace(" ", "")

    def inputs(self) -> Tensors:
        """q, k, v with contents seeded by the case; memory between their elements is NaN."""
        (seqlen_q, seqlen_k), (heads_q, heads_kv) = self.lengths, self.heads
        shapes = (
            (self.batch, seqlen_q, heads_q, self.head_dims[0]),
            (self.batch, seqlen_k, heads_kv, self.head_dims[0]),
            (self.batch, seqlen_k, heads_kv, self.head_dims[1]),
        )
        tensors = LAYOUTS[self.layout](shapes, getattr(torch, self.dtype))
        generator = torch.Generator().manual_seed(_seed(str(self)))
        for tensor in tensors:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        return tensors


def forward_matrix() -> Iterator[tuple[Case, bool]]:
    """Every case in a fixed order, one compiled kernel after another, and whether it is short.

    Short are the first cases of a group; on Hopper the even ones in one dtype and the odd ones in
    the other.
    """
    for arch, head_dims in (
        (arch, dims) for arch, several in HEAD_DIMS.items() for dims in several
    ):
        for dtype, mask in itertools.product(DTYPES, MASKS):
            skipped = 1 - DTYPES.index(dtype) if arch == "sm_90a" else None
            for index, case in enumerate(_group(arch, head_dims, dtype, mask)):
                yield case, index < SHORT and index % 2 != skipped


def _group(arch: str, head_dims: tuple[int, int], dtype: str, mask: str) -> Iterator[Case]:
    """All pairs of lengths; heads, layouts, batches and options go round beside them."""
    rng = random.Random(_seed(f"{arch}{head_dims}{dtype}{mask}"))
    heads, layouts = rng.sample(HEADS, len(HEADS)), rng.sample(sorted(LAYOUTS), len(LAYOUTS))
    causal = rng.random() < 0.5
    pairs = [
        (LENGTHS[i], LENGTHS[(i + shift) % len(LENGTHS)])
        for shift in rng.sample(range(len(LENGTHS)), len(LENGTHS))
        for i in range(len(LENGTHS))
    ]
    for index, lengths in enumerate(pairs):
        yield Case(
            arch=arch,
            head_dims=head_dims,
            dtype=dtype,
            lengths=lengths,
            heads=heads[index % len(heads)],
            batch=2 if index % 3 == 0 else 1,
            layout=layouts[index % len(layouts)],
            options=_options(mask, causal, rng),
        )


def _options(mask: str, causal: bool, rng: random.Random) -> dict[str, object]:
    if mask == "causal":
        return {"causal": True}
    if mask == "window":
        return {"window_size": rng.choice(WINDOWS)}
    if mask == "softcap":
        return {"softcap": rng.choice(SOFTCAPS), "causal": causal}
    return {}


def contiguous(shapes: Shapes, dtype: torch.dtype) -> Tensors:
    return tuple(torch.empty(shape, dtype=dtype) for shape in shapes)


def transposed(shapes: Shapes, dtype: torch.dtype) -> Tensors:
    """Stored as (B, H, S, D)."""
    return tuple(torch.empty((b, h, s, d), dtype=dtype).transpose(1, 2) for b, s, h, d in shapes)


def fused(shapes: Shapes, dtype: torch.dtype) -> Tensors:
    """Slices of the output of one projection; with different lengths, of two."""
    widths = [heads * head_dim for _, _, heads, head_dim in shapes]
    rows = {shape[:2]: _poisoned((*shape[:2], sum(widths)), dtype) for shape in shapes}
    return tuple(
        rows[shape[:2]].split(widths, dim=-1)[index].unflatten(-1, shape[2:])
        for index, shape in enumerate(shapes)
    )


def sliced(shapes: Shapes, dtype: torch.dtype) -> Tensors:
    """Views into larger tensors, with a base that is aligned to 16 bytes only."""
    return tuple(
        _poisoned((b + 1, s + 5, h + 1, d + 16), dtype)[1:, 3 : 3 + s, :h, 8 : 8 + d]
        for b, s, h, d in shapes
    )


LAYOUTS = {f.__name__: f for f in (contiguous, transposed, fused, sliced)}


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


def _seed(text: str) -> int:
    return zlib.crc32(text.encode())
