"""What is measured: one cell per head dim, mask and length, all with the same number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TOKENS = 16384  # batch * length of every cell
HIDDEN = 2048  # heads * head dim of the cells without grouped heads
GROUPED = (128, 32, 8)  # head dim, query heads, key/value heads of the grouped cells
HEAD_DIMS = (64, 128, 256)
MASKS = ("full", "causal")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
QUICK_LENGTHS = (1024, 8192)
SETS = ("mha", "gqa")

GEMM_SIZE = 8192


@dataclass(frozen=True)
class Cell:
    """One self-attention problem in bfloat16: q, k, v of (batch, length, heads, head dim)."""

    head_dim: int
    causal: bool
    length: int
    heads_q: int
    heads_kv: int

    @property
    def batch(self) -> int:
        return max(1, TOKENS // self.length)

    @property
    def flops(self) -> int:
        """Two matrix products of 2 * length^2 * head_dim per head; a causal mask halves them.

        The convention of the FlashAttention-2 paper, section 4.1.
        """
        full = 4 * self.batch * self.heads_q * self.length**2 * self.head_dim
        return full // 2 if self.causal else full

    @property
    def group(self) -> str:
        """The line of a table that the cell belongs to."""
        mask = "causal" if self.causal else "full"
        grouped = f" gqa {self.heads_q}/{self.heads_kv}" if self.heads_q != self.heads_kv else ""
        return f"d{self.head_dim} {mask}{grouped}"

    def __str__(self) -> str:
        return f"{self.group} {length_name(self.length)}"


def length_name(length: int) -> str:
    """4096 -> "4k"."""
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def grid(
    sets: Sequence[str] = SETS,
    head_dims: Sequence[int] = HEAD_DIMS,
    masks: Sequence[str] = MASKS,
    lengths: Sequence[int] = LENGTHS,
) -> list[Cell]:
    """The chosen cells; those of one compiled kernel follow one another."""
    return [
        Cell(head_dim, mask == "causal", length, heads_q, heads_kv)
        for head_dim, heads_q, heads_kv in _heads(sets, head_dims)
        for mask in masks
        for length in lengths
    ]


def _heads(sets: Sequence[str], head_dims: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    if "mha" in sets:
        yield from ((d, HIDDEN // d, HIDDEN // d) for d in head_dims)
    if "gqa" in sets and GROUPED[0] in head_dims:
        yield GROUPED


def tflops(flops: int, milliseconds: float) -> float:
    """Rate of `flops` operations done in `milliseconds`."""
    return flops / milliseconds * 1e-9
