"""Models that call torch's `scaled_dot_product_attention` run our kernels, unchanged.

    from fa4.backends import sdpa

    sdpa.activate()  # for CUDA tensors; torch.nn.attention.current_flash_attention_impl() tells
    sdpa.deactivate()

This registers a flash-attention implementation with torch (`torch.nn.attention`), which replaces
what torch's dispatcher runs once SDPA has chosen its flash backend. The choice stays torch's: calls
with a mask, in float32 or causal with unequal lengths go to its other backends as before, and
`torch.nn.attention.sdpa_kernel` rules. What torch would hand to flash attention and we cannot do
(dropout) is an error, never another result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import attention as torch_attention
from torch.nn.functional import pad

from fa4 import api
from fa4.gradients import attention_backward

NAME = "fa4-kernels"
EMULATED_NAME = "fa4-kernels-emulated"


def activate(emulate: bool = False) -> None:
    """Make our kernels the flash-attention implementation of SDPA, in this process.

    Args:
        emulate: take CPU tensors, in the emulator (see `fa4.flash_attn_func`), instead of CUDA
            tensors. torch's choice for a CPU does not look at the dtype: float32 is then an error.

    Raises RuntimeError where torch has no registry of such implementations.
    """
    if not hasattr(torch_attention, "register_flash_attention_impl"):
        raise RuntimeError(
            f"torch {torch.__version__} has no torch.nn.attention.register_flash_attention_impl; "
            "install torch >= 2.11, or call fa4.flash_attn_func."
        )
    name, handle = (EMULATED_NAME, _Emulated) if emulate else (NAME, _Native)
    torch_attention.register_flash_attention_impl(name, register_fn=handle)
    torch_attention.activate_flash_attention_impl(name)


def deactivate() -> None:
    """Give SDPA torch's own flash attention back."""
    torch_attention.restore_flash_attention_impl()


class _Registered:
    """Kernels in torch's dispatcher, from construction to `remove`."""

    def __init__(self, key: str, kernels: dict[str, Any]) -> None:
        self._library = torch.library.Library("aten", "IMPL", key)
        for name, kernel in kernels.items():
            self._library.impl(name, kernel)

    def remove(self) -> None:
        """Called by torch when another implementation is activated."""
        del self._library


class _Native(_Registered):
    def __init__(self) -> None:
        forward = "_scaled_dot_product_flash_attention"
        super().__init__("CUDA", {forward: _forward_cuda, f"{forward}_backward": _backward_cuda})


class _Emulated(_Registered):
    def __init__(self) -> None:
        forward = "_scaled_dot_product_flash_attention_for_cpu"
        super().__init__("CPU", {forward: _forward_cpu, f"{forward}_backward": _backward_cpu})


def _forward_cuda(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    if return_debug_mask:
        raise NotImplementedError("return_debug_mask is True; no kernel here returns that mask.")
    out, lse = _forward((query, key, value), dropout_p, is_causal, scale)
    # There is no dropout, so that nothing reads its state and its mask.
    state = query.new_empty(2, dtype=torch.uint64), query.new_empty((), dtype=torch.uint64)
    return out, lse, None, None, query.shape[2], key.shape[2], *state, query.new_empty(0)


def _backward_cuda(
    grad_out: torch.Tensor, *rest: Any, scale: float | None = None
) -> tuple[torch.Tensor, ...]:
    inputs, saved, is_causal = rest[:3], rest[3:5], rest[10]  # between them lengths and dropout
    gradients = _backward(grad_out, inputs, saved, is_causal, scale)
    return tuple(_laid_out(g, like) for g, like in zip(gradients, inputs, strict=True))


def _forward_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if attn_mask is not None:
        raise NotImplementedError(
            f"attn_mask has shape {tuple(attn_mask.shape)}; no kernel here takes a mask. Use "
            "is_causal, or torch.nn.attention.sdpa_kernel(SDPBackend.MATH) around the call."
        )
    out, lse = _forward((query, key, value), dropout_p, is_causal, scale)
    return out, lse.transpose(1, 2).contiguous().transpose(1, 2)  # the strides torch promises


def _backward_cpu(
    grad_out: torch.Tensor,
    *rest: Any,
    attn_mask: torch.Tensor | None = None,  # refused by the forward pass
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    inputs, saved, is_causal = rest[:3], rest[3:5], rest[6]  # between them dropout
    return _backward(grad_out, inputs, saved, is_causal, scale)


Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""query, key, value: (batch, heads, seqlen, head_dim)."""


def _forward(
    inputs: Inputs, dropout_p: float, is_causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if dropout_p != 0.0:
        raise NotImplementedError(
            f"dropout_p is {dropout_p}; no kernel here drops out. Pass 0.0, or use "
            "torch.nn.attention.sdpa_kernel with another backend around the call."
        )
    (q, k, v), options = _ours(inputs, is_causal, scale)
    out, lse = api.attention(q, k, v, options)
    return _laid_out(out.transpose(1, 2), inputs[0]), lse


def _backward(
    grad_out: torch.Tensor,
    inputs: Inputs,
    saved: tuple[torch.Tensor, torch.Tensor],
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    """Gradients of query, key and value, in memory (batch, seqlen, heads, head_dim).

    `saved` are out and lse.
    """
    (q, k, v), options = _ours(inputs, is_causal, scale)
    (out, lse), hidden = saved, inputs[1].shape[2] - k.shape[1]
    dq, dk, dv = attention_backward(
        grad_out.transpose(1, 2), None, q, k, v, out.transpose(1, 2), lse, *options
    )
    if hidden:
        dk, dv = (pad(gradient, (0, 0, 0, 0, 0, hidden)) for gradient in (dk, dv))
    return tuple(gradient.transpose(1, 2) for gradient in (dq, dk, dv))


def _ours(
    inputs: Inputs, is_causal: bool, scale: float | None
) -> tuple[tuple[torch.Tensor, ...], api.Options]:
    """q, k, v (batch, seqlen, heads, head_dim) and the options of the same attention.

    SDPA's causal mask is aligned at the top left, ours at the bottom right: with fewer keys than
    queries it is a bound on the right, and of more keys no query sees the last.
    """
    q, k, v = (tensor.transpose(1, 2) for tensor in inputs)
    more = q.shape[1] - k.shape[1]
    if is_causal and more > 0:
        return (q, k, v), (scale, False, None, more, 0.0, False)
    if is_causal and more < 0:
        k, v = k[:, :more], v[:, :more]
    return (q, k, v), (scale, is_causal, None, None, 0.0, False)


def _laid_out(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`tensor` with the strides that torch's shape functions promise to compiled graphs."""
    promised = torch.empty_like(like)
    return tensor if tensor.stride() == promised.stride() else promised.copy_(tensor)
