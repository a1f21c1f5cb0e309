"""Results against float32: every row of every implementation is checked in the run that times it.

The reference is the textbook formula on the GPU, independent of the package that is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ROW_LIMIT = 2e-2  # relative RMS of the worst row: rounding P and O to bfloat16 gives 2e-3 to 5e-3
MAX_SCORES = 1 << 28  # scores held at a time: 1 GiB
SCORE_JUMP = 160.0  # more than 2^100 = e^69 above any other score

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Error:
    """Relative RMS error of all rows together, and of the worst row alone."""

    all_rows: float
    worst_row: float

    @property
    def ok(self) -> bool:
        """A NaN fails."""
        return self.worst_row <= ROW_LIMIT


def error(out: torch.Tensor, expected: torch.Tensor) -> Error:
    """Of `out` (B, S, H, D) against `expected`, float32, without zero rows."""
    difference = (out.float() - expected).square().sum(dim=-1)
    size = expected.square().sum(dim=-1)
    return Error(
        all_rows=(difference.sum() / size.sum()).sqrt().item(),
        worst_row=(difference / size).max().sqrt().item(),
    )


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Self-attention (B, S, H, D) in float32, a few heads at a time."""
    batch, length, heads, head_dim = q.shape
    group = heads // k.shape[2]
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu_(1)
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    step = max(1, MAX_SCORES // length**2)
    for b in range(batch):
        for first in range(0, heads, step):
            chosen = torch.arange(first, min(first + step, heads), device=q.device)
            rows = q[b, :, chosen].float().transpose(0, 1)
            keys = k[b, :, chosen // group].float().permute(1, 2, 0)
            values = v[b, :, chosen // group].float().transpose(0, 1)
            scores = (rows * head_dim**-0.5) @ keys
            if causal:
                scores.masked_fill_(hidden, -torch.inf)
            out[b, :, chosen] = (torch.softmax(scores, dim=-1) @ values).transpose(0, 1)
    return out


@dataclass(frozen=True)
class Jumps:
    """Queries whose row maximum jumps by more than 2^100 at key 0, the last that a tile reads.

    A kernel that keeps the maximum of its first blocks must compute such a tile again.
    share: of all blocks of `rows` queries, those that hold one such query; drawn at random.
    """

    share: float
    rows: int

    def apply(self, q: torch.Tensor, k: torch.Tensor, generator: torch.Generator) -> None:
        """Change q and k (B, S, H, D) in place: column 0 holds the jumps and nothing else."""
        batch, length, heads, head_dim = q.shape
        blocks = max(1, length // self.rows)
        count = batch * blocks * heads
        order = torch.randperm(count, generator=generator, device=q.device)
        drawn = (order < round(self.share * count)).view(batch, blocks, heads)
        k[..., 0] = 0.0
        k[:, 0, :, 0] = SCORE_JUMP
        q[..., 0] = 0.0
        q[:, : blocks * self.rows : self.rows, :, 0] = drawn * head_dim**0.5


def inputs(
    shapes: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    device: str,
    jumps: Jumps | None = None,
) -> Tensors:
    """q, k, v from a normal distribution; the same for every run."""
    generator = torch.Generator(device=device).manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator, device=device) for shape in shapes)
    if jumps:
        jumps.apply(q, k, generator)
    return q.to(dtype), k.to(dtype), v.to(dtype)
