"""The implementations that are compared, each bound to inputs as a call without arguments.

FlashAttention-3 has no wheel of its own, but vllm's holds its kernels in one library: that of an
installed vllm takes part, or the one whose path the environment variable FA3_LIBRARY gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.hopper.passes import Given

OURS = "ours"
FA3_LIBRARY = "FA3_LIBRARY"  # environment variable
_FA3_IN_VLLM = Path("vllm_flash_attn", "_vllm_fa3_C.abi3.so")


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
        _flash_attn_3(),
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


def _flash_attn_3() -> Implementation:
    """FlashAttention-3 through the entry for sequences of unequal lengths, the only one here that
    takes no paged cache. Its small kernel that plans the tiles is part of every call.
    """
    missing, forward = "", None
    try:
        torch.ops.load_library(_fa3_library())
        forward = torch.ops._vllm_fa3_C.fwd.default
    except Exception as error:  # whatever loading raises is the reason that is reported
        missing = f"{type(error).__name__}: {error.__cause__ or error}"

    def bind(inputs: Given, causal: bool) -> Callable[[], Any]:
        arguments = _fa3_arguments(forward._schema, inputs, causal)
        shape = inputs[0].shape
        return lambda: forward(*arguments)[0].view(shape)

    return Implementation("fa3", bind, output=lambda out: (out,), missing=missing)


def _fa3_library() -> str:
    """Path of the library. Raises FileNotFoundError, which says how to have one."""
    if path := os.environ.get(FA3_LIBRARY):
        return path
    spec = find_spec("vllm")  # does not import it
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder, _FA3_IN_VLLM)).is_file():
            return str(path)
    found = f"the vllm that is installed has no {_FA3_IN_VLLM}" if spec else "no vllm is installed"
    raise FileNotFoundError(
        f"{found}: install vllm 0.33, or set {FA3_LIBRARY} to the path of "
        f"{_FA3_IN_VLLM.name} from its wheel"
    )


def _fa3_arguments(schema: Any, inputs: Given, causal: bool) -> list[Any]:
    """In the order of the library's schema; what has no entry below is optional, and None.

    The number of splits is left to its heuristic (0), as vllm does. Raises ValueError for a schema
    without one of the names.
    """
    batch, length, _, head_dim = inputs[0].shape
    end = (batch + 1) * length
    starts = torch.arange(0, end, length, dtype=torch.int32, device=inputs[0].device)
    given = {
        **{name: t.view(-1, *t.shape[2:]) for name, t in zip("qkv", inputs, strict=True)},
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), starts),
        **dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), length),
        "softmax_scale": head_dim**-0.5,
        "is_causal": causal,
        **dict.fromkeys(("window_size_left", "window_size_right"), -1),  # no window
        "softcap": 0.0,
        "is_rotary_interleaved": True,
        **dict.fromkeys(("num_splits", "sm_margin"), 0),
        "cp_world_size": 1,  # context parallel: one GPU
        "cp_rank": 0,
    }
    names = [argument.name for argument in schema.arguments]
    if unknown := given.keys() - set(names):
        raise ValueError(
            f"this library's forward takes no {', '.join(sorted(unknown))}: it is not that of "
            f"vllm 0.33, but {schema}"
        )
    return [given.get(name) for name in names]


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
