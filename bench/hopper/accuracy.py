"""Results against float32: every row of every implementation is checked in the run that times it.

The reference is the textbook formula on the GPU, independent of the package that is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

ROW_LIMIT = 2e-2  # relative RMS of the worst row: rounding P and O to bfloat16 gives 2e-3 to 5e-3
BLOCK = 128  # rows of a gradient whose error is taken together
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


def gradient_error(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Error:
    """Of dQ, dK, dV (B, S, H, D) together; a "row" is a block of them in one head.

    Single rows may vanish: a causal query that sees one key has dQ = 0.
    """
    totals, worst = [], []
    for result, right in zip(results, expected, strict=True):
        difference = (result.float() - right).square().sum(dim=-1)
        size = right.square().sum(dim=-1)
        totals.append((difference.sum() / size.sum()).item())
        blocks = [
            torch.stack([part.sum(dim=1) for part in rows.split(BLOCK, dim=1)])
            for rows in (difference, size)
        ]
        worst.append((blocks[0] / blocks[1]).max().item())
    return Error(_largest(totals) ** 0.5, _largest(worst) ** 0.5)


def _largest(values: Sequence[float]) -> float:
    return torch.tensor(values, dtype=torch.float64).max().item()  # NaN if there is one


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Self-attention (B, S, H, D) in float32, a few heads at a time."""
    return reference_with_lse(q, k, v, causal)[0]


def reference_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, and the LSE (B, H, S)."""
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device=q.device)
    for b, heads, scores, values in _scored(q, k, v, causal):
        out[b, :, heads] = (torch.softmax(scores, dim=-1) @ values).transpose(0, 1)
        lse[b, heads] = scores.logsumexp(dim=-1)
    return out, lse


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_out: torch.Tensor,
    causal: bool,
) -> Tensors:
    """dQ, dK, dV in float32: dS = P (dO V^T - rowsum(dO O)), FlashAttention-2, section 3.1."""
    group, scale = q.shape[2] // k.shape[2], q.shape[3] ** -0.5
    dq, dk, dv = (torch.zeros(t.shape, device=q.device) for t in (q, k, v))
    for b, heads, scores, values in _scored(q, k, v, causal):
        do, o = (t[b, :, heads].float().transpose(0, 1) for t in (grad_out, out))
        p = scores.sub_(lse[b, heads, :, None]).exp_()
        dv[b].index_add_(1, heads // group, (p.mT @ do).transpose(0, 1))
        delta = (do * o).sum(dim=-1, keepdim=True)
        ds = (do @ values.mT).sub_(delta).mul_(p).mul_(scale)
        rows, keys = (t.float().transpose(0, 1) for t in (q[b, :, heads], k[b, :, heads // group]))
        dq[b, :, heads] = (ds @ keys).transpose(0, 1)
        dk[b].index_add_(1, heads // group, (ds.mT @ rows).transpose(0, 1))
    return dq, dk, dv


def _scored(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Some heads of a batch element at a time: (element, heads, their scores, their values)."""
    batch, length, heads, head_dim = q.shape
    group = heads // k.shape[2]
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu_(1)
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
            yield b, chosen, scores, values


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
