"""The implementations that are compared, each bound to inputs as a call without arguments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.hopper.passes import Given

OURS = "ours"


@dataclass(frozen=True)
class Implementation:
    """One way to compute a pass of attention on what `Pass.inputs` returns.

    bind: (inputs, causal) -> call; what the call needs beyond its launch is done once, here.
    output: what the call returns -> (O,) of (batch, length, heads, head dim), or (dQ, dK, dV);
        views.
    context: must be open around the calls; its cost is not theirs.
    missing: why it cannot run here; empty when it can.
    """

    name: str
    bind: Callable[[Given, bool], Callable[[], Any]]
    output: Callable[[Any], Given]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    missing: str = ""


def implementations(ours_only: bool = False) -> list[Implementation]:
    """Ours first, then every peer, whether it is here or not."""
    if ours_only:
        return [_ours()]
    return [
        _ours(),
        _sdpa("cudnn", SDPBackend.CUDNN_ATTENTION, torch.backends.cudnn.is_available()),
        _flash_attn_4(),
        _sdpa(
            "fa2", SDPBackend.FLASH_ATTENTION, torch.backends.cuda.is_flash_attention_available()
        ),
    ]


def package_version(name: str) -> str | None:
    """Of an installed distribution; None without it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def gemm(size: int, device: str) -> Callable[[], Any]:
    """A bfloat16 matrix product of cuBLAS: shows what the card gives at the moment."""
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _ours() -> Implementation:
    import fa4

    def bind(inputs: Given, causal: bool) -> Callable[[], Any]:
        attention, (q, k, v) = fa4.flash_attn_func, inputs
        return lambda: attention(q, k, v, causal=causal)

    return Implementation(OURS, bind, output=lambda out: (out,))


def _flash_attn_4() -> Implementation:
    """flash-attn-4's Hopper forward; its call returns (O, LSE or None)."""
    name, missing, attention = "flash-attn-4", "", None
    try:
        from flash_attn.cute import flash_attn_func as attention
    except Exception as error:  # whatever its import raises is the reason that is reported
        missing = f"{type(error).__name__}: {error}"

    def bind(inputs: Given, causal: bool) -> Callable[[], Any]:
        q, k, v = inputs
        return lambda: attention(q, k, v, causal=causal)

    return Implementation(name, bind, output=lambda result: (result[0],), missing=missing)


def _sdpa(name: str, backend: SDPBackend, available: bool) -> Implementation:
    """One backend of torch's scaled_dot_product_attention; no other is allowed to step in."""

    def bind(inputs: Given, causal: bool) -> Callable[[], Any]:
        q, k, v = (t.transpose(1, 2) for t in inputs)
        grouped = q.shape[1] != k.shape[1]
        return lambda: scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return Implementation(
        name,
        bind,
        output=lambda out: (out.transpose(1, 2),),
        context=lambda: sdpa_kernel(backend),
        missing="" if available else f"this torch has no {backend.name} backend",
    )
