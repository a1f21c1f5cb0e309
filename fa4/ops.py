"""Attention as torch operators: `torch.ops.fa4.attention` and its gradient.

`fa4.flash_attn_func` goes through them wherever torch may have something else in mind than to run
the kernel: where a graph is traced, for fake tensors and other subclasses, under dispatch modes.
Defined with torch.library's low-level interface, whose dispatch is several times cheaper than that
of `torch.library.custom_op`; with an autograd function of our own, which costs half of what
`torch.library.register_autograd` makes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad

from fa4 import api
from fa4.gradients import attention_backward
from fa4.problem import Problem
from fa4.schema import LIBRARY, Gradients, Results


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Results:
    """Differentiable (out, lse), see `flash_attn_func`; `options` as in `api.Options`."""
    if torch.compiler.is_compiling() or not api.is_plain(q, k, v):
        return torch.ops.fa4.attention(q, k, v, *options)
    return _Attention.apply(True, q, k, v, *options)


def options_of(problem: Problem) -> api.Options:
    """What the operators take behind the tensors of this problem."""
    # causal is "window_right == 0" in a Problem
    masks = False, problem.window_left, problem.window_right
    return problem.scale, *masks, problem.softcap, problem.deterministic


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Results:
    return api.attention(q, k, v, options)


class _Attention(torch.autograd.Function):
    """`direct`: without torch's dispatcher, which takes longer than all else of a call."""

    @staticmethod
    def forward(
        ctx: Any, direct: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any
    ) -> Results:
        call = _attention if direct else _below_autograd(torch.ops.fa4.attention)
        out, lse = call(q, k, v, *options)
        ctx.direct, ctx.options = direct, options
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(
        ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        given = grad_out, grad_lse, q, k, v, out, lse, *ctx.options
        grads = (grad_out,) if grad_lse is None else (grad_out, grad_lse)
        # where gradients of gradients are recorded, the operator refuses them
        direct = (
            ctx.direct
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()  # by compiled autograd
            and api.is_plain(q, k, v, *grads)
            and not any(map(_without_values, grads))
        )
        gradients = (attention_backward if direct else torch.ops.fa4.attention_backward)(*given)
        return None, *gradients, *(None for _ in ctx.options)


def _without_values(grad: torch.Tensor) -> bool:
    """Whether memory of this plain tensor holds something else: autograd makes such gradients, and
    torch's dispatcher what they stand for, as of those of `is_grads_batched`."""
    return grad._is_zerotensor() or grad.is_neg() or is_legacy_batchedtensor(grad)


class _AttentionBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Gradients:
        return _below_autograd(torch.ops.fa4.attention_backward)(*given)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> None:
        raise NotImplementedError(
            "The gradients of fa4's attention are differentiated once more, as by a second "
            "backward pass behind one with create_graph=True; its kernels give first derivatives "
            "only. Compute this attention by torch's scaled_dot_product_attention under "
            "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)."
        )


def _below_autograd(operator: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*given)

    return call


def _recorded(
    operator: Callable[..., Any], with_gradient: Callable[..., Any]
) -> Callable[..., Any]:
    """What autograd does with a call of an operator."""
    without = _below_autograd(operator)

    def call(*given: Any) -> Any:
        wanted = torch.is_grad_enabled() and torch._C._any_requires_grad(*given)
        forward_mode = forward_ad._current_level >= 0  # which autograd functions refuse
        if not (wanted or forward_mode):
            return without(*given)
        if torch._C._are_functorch_transforms_active():
            raise NotImplementedError(
                "fa4's attention has no derivatives inside torch.func's transforms (grad, vjp, jvp "
                "and their kind); use torch.autograd.grad or backward()."
            )
        return with_gradient(*given)

    return call


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("attention", _attention, _key)
    LIBRARY.impl("attention_backward", attention_backward, _key)
_recorded_attention = _recorded(torch.ops.fa4.attention, partial(_Attention.apply, False))
_recorded_backward = _recorded(torch.ops.fa4.attention_backward, _AttentionBackward.apply)
LIBRARY.impl("attention", _recorded_attention, "Autograd")
LIBRARY.impl("attention_backward", _recorded_backward, "Autograd")
