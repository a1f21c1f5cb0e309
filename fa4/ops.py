"""Attention as torch operators: `torch.ops.fa4.attention` and its gradient.

`fa4.flash_attn_func` goes through them where a gradient is needed or a graph is traced; they carry
the registrations that autograd and torch.compile need. Defined with torch.library's low-level
interface, whose dispatch is several times cheaper than that of `torch.library.custom_op`.
"""

from __future__ import annotations

from typing import Any

import torch

from fa4 import api
from fa4.addressing import addressable
from fa4.launch_backward import BackwardTensors, backward
from fa4.plan_backward import plan_backward
from fa4.problem import Problem

_OPTIONS = (
    "float? softmax_scale, bool causal, int? window_left, int? window_right, float softcap, "
    "bool deterministic"
)
_LIBRARY = torch.library.Library("fa4", "DEF")
_LIBRARY.define(f"attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)")
_LIBRARY.define(
    "attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, "
    f"Tensor out, Tensor lse, {_OPTIONS}) -> (Tensor, Tensor, Tensor)"
)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Differentiable (out, lse), see `flash_attn_func`; `options` as in `api.Options`."""
    if not torch.compiler.is_compiling():
        _asked(q, k, v, options)  # our errors come before those of the operator's schema
    return torch.ops.fa4.attention(q, k, v, *options)


def options_of(problem: Problem) -> api.Options:
    """What the operators take behind the tensors of this problem."""
    # causal is "window_right == 0" in a Problem
    masks = False, problem.window_left, problem.window_right
    return problem.scale, *masks, problem.softcap, problem.deterministic


def _arch(q: torch.Tensor) -> str:
    return api.foreign_arch(q) or api.native_arch(q.device)


def _asked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: api.Options
) -> tuple[Problem, str]:
    """The problem and the architecture it runs on."""
    arch = _arch(q)
    return api.resolve(api.layouts_of(q, k, v), arch, *options)[0], arch


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    scale, causal, left, right, softcap, _ = options  # O has the same bits always
    with torch.no_grad():
        return api.flash_attn_func(q, k, v, scale, causal, (left, right), softcap, return_lse=True)


def _attention_backward(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    (out, lse), options, deterministic = rest[:2], rest[2:-1], rest[-1]
    options = (*options, deterministic or torch.are_deterministic_algorithms_enabled())
    problem, arch = _asked(q, k, v, options)
    if problem.empty:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    gradients = tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    given = {"q": q, "k": k, "v": v, "o": out, "do": _unit_stride(grad_out)}
    tensors = BackwardTensors(
        **{name: addressable(name, tensor) for name, tensor in given.items()},
        lse=lse.contiguous(),
        dlse=None if grad_lse is None else grad_lse.contiguous(),
        **dict(zip(("dq", "dk", "dv"), gradients, strict=True)),
    )
    backward(problem, plan_backward(problem, arch), tensors)
    return gradients


def _unit_stride(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _attention_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    q, k, v, out, lse = ctx.saved_tensors
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    gradients = torch.ops.fa4.attention_backward(
        grad_out, grad_lse, q, k, v, out, lse, *ctx.options
    )
    return *gradients, *(None for _ in ctx.options)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("attention", _attention, _key)
    _LIBRARY.impl("attention_backward", _attention_backward, _key)
torch.library.register_fake("fa4::attention", _attention_fake, lib=_LIBRARY)
torch.library.register_fake("fa4::attention_backward", _attention_backward_fake, lib=_LIBRARY)
torch.library.register_autograd("fa4::attention", _differentiate, setup_context=_save, lib=_LIBRARY)
