"""Forward and backward: what is given, what is right, and how many operations count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from bench.hopper import accuracy
from bench.hopper.accuracy import Error, Jumps
from bench.hopper.cells import Cell

Given = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Pass:
    """What `measure.Bench` asks of the pass that it measures.

    inputs: (cell, dtype, device, jumps) -> what implementations are bound to.
    reference: (inputs, causal) -> the right results in float32.
    error: (results, right ones) -> how far apart they are.
    products: matrix products of length^2 * head_dim per head, of which `Cell.flops` counts two.
    """

    inputs: Callable[[Cell, torch.dtype, str, Jumps | None], Given]
    reference: Callable[[Given, bool], Given]
    error: Callable[[Sequence[torch.Tensor], Given], Error]
    products: int

    def flops(self, cell: Cell) -> int:
        """Operations of the pass; those of a backward are 2.5 times those of a forward."""
        return cell.flops * self.products // 2


def _inputs(cell: Cell, dtype: torch.dtype, device: str, jumps: Jumps | None) -> Given:
    q, kv = ((cell.batch, cell.length, h, cell.head_dim) for h in (cell.heads_q, cell.heads_kv))
    return accuracy.inputs((q, kv, kv), dtype, device, jumps)


def _backward_inputs(cell: Cell, dtype: torch.dtype, device: str, jumps: Jumps | None) -> Given:
    """q, k, v, O, LSE (B, H, S) and dO; O and LSE by the textbook formula."""
    q, k, v = _inputs(cell, dtype, device, jumps)
    out, lse = accuracy.reference_with_lse(q, k, v, cell.causal)
    generator = torch.Generator(device=device).manual_seed(1)
    grad_out = torch.randn(q.shape, generator=generator, device=device).to(dtype)
    return q, k, v, out.to(dtype), lse, grad_out


FORWARD = Pass(
    inputs=_inputs,
    reference=lambda given, causal: (accuracy.reference(*given, causal),),
    error=lambda results, right: accuracy.error(results[0], right[0]),
    products=2,
)

BACKWARD = Pass(
    inputs=_backward_inputs,
    reference=lambda given, causal: accuracy.gradients(*given, causal),
    error=accuracy.gradient_error,
    products=5,
)
