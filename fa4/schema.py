"""The torch operators but for what they run: signatures, what their results look like, what they
count as. `ops` adds the kernels and the compiler that comes along with them.

Imported with the entry points: `FlopCounterMode` counts by the formulas that were there before it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula, sdpa_backward_flop, sdpa_flop

_OPTIONS = (
    "float? softmax_scale, bool causal, int? window_left, int? window_right, float softcap, "
    "bool deterministic"
)
LIBRARY = torch.library.Library("fa4", "DEF")
LIBRARY.define(f"attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)")
LIBRARY.define(
    "attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, "
    f"Tensor out, Tensor lse, {_OPTIONS}) -> (Tensor, Tensor, Tensor)"
)

Results = tuple[torch.Tensor, torch.Tensor]
"""out, lse."""
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Of q, k and v."""


def _attention_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Results:
    batch, seqlen, heads, _ = q.shape
    out = q.new_empty((batch, seqlen, heads, v.shape[3]))
    return out, q.new_empty((batch, heads, seqlen), dtype=torch.float32)


def _attention_backward_fake(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *rest: Any,
) -> Gradients:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _attention_flop(
    q: torch.Size, k: torch.Size, v: torch.Size, *options: Any, **results: Any
) -> int:
    """As torch counts its own SDPA: every query with every key, whatever the mask hides."""
    return sdpa_flop(*_for_sdpa(q, k, v))


def _attention_backward_flop(
    grad_out: torch.Size,
    grad_lse: torch.Size | None,
    q: torch.Size,
    k: torch.Size,
    v: torch.Size,
    *rest: Any,
    **results: Any,
) -> int:
    return sdpa_backward_flop(*_for_sdpa(grad_out, q, k, v))


def _for_sdpa(*shapes: torch.Size) -> list[tuple[int, ...]]:
    """In SDPA's order of dimensions, keys and values repeated for each query head."""
    heads = shapes[0][2]
    return [(batch, heads, seqlen, dim) for batch, seqlen, _, dim in shapes]


torch.library.register_fake("fa4::attention", _attention_fake, lib=LIBRARY)
torch.library.register_fake("fa4::attention_backward", _attention_backward_fake, lib=LIBRARY)
register_flop_formula(torch.ops.fa4.attention)(_attention_flop)
register_flop_formula(torch.ops.fa4.attention_backward)(_attention_backward_flop)
