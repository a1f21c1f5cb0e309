"""The entry points for torch tensors: check, plan, prepare once; then allocate and launch.

A call that was made before with the same layouts and options costs one cache hit for all but its
allocations and its launch.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _is_any_autocast_enabled, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack as _innermost_transform
from torch.autograd import forward_ad

from fa4.addressing import (
    TMA_ALIGNMENT,
    addressable,
    contiguous_strides,
    stride_obstacle,
    tma_obstacle,
    with_plain_strides,
)
from fa4.allocation import EMPTY, Memory, index_of, is_elsewhere
from fa4.emulator.sessions import current_session, open_sessions
from fa4.plan import plan_forward
from fa4.plan_base import BasePlan
from fa4.problem import Problem, default_scale
from fa4.schema import Results

if TYPE_CHECKING:
    from fa4.launch import Launch

logger = logging.getLogger("fa4")

# by compute capability
NATIVE_ARCHS = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}
EMULATED_ARCHS = ("sm_100a", "sm_90a")

_DTYPE_NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True)
class Support:
    """Whether a call would run. `reason` says why not, or what it will cost beyond the kernel."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    return_lse: bool = False,
    deterministic: bool = False,
) -> torch.Tensor | Results:
    """Softmax attention, O = softmax(softmax_scale * Q K^T) V; differentiable.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim), bfloat16 or float16.
        k: (batch, seqlen_k, heads_kv, head_dim); heads_q is a multiple of heads_kv (GQA, MQA).
        v: (batch, seqlen_k, heads_kv, head_dim_v). Head dims are multiples of 8, at most 128, or
            (192, 128); on Hopper at most 256. Strides are free but the last, which is 1. A tensor
            whose base or strides are no multiple of 16 bytes is copied first, since TMA cannot
            address it.
        softmax_scale: positive; default 1/sqrt(head_dim).
        causal: query i sees keys j <= i + seqlen_k - seqlen_q (aligned at the bottom right).
        window_size: (left, right); query i sees the keys from i - left to i + right, aligned as
            above. None or a negative bound is unbounded; `causal` makes right 0.
        softcap: scores become softcap * tanh(score / softcap); 0.0 is off.
        return_lse: return also the log-sum-exp of each row.
        deterministic: gradients have the same bits in every run, as they have under
            `torch.use_deterministic_algorithms`; slower. The results have them always.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim_v) in the dtype of q; with return_lse also
        lse (batch, heads_q, seqlen_q), float32, natural logarithm. A row that sees no key has
        out 0 and lse -inf.

    Hidden keys may hold anything. Hidden values count as 0 * v, so a NaN or infinity in v makes
    out NaN in rows that do not see it too, as in torch, where its block of keys is processed.

    Under `torch.autocast` q, k and v are cast to its dtype, as those of torch's SDPA are.

    q, k and v have gradients, through lse too, but no second derivatives. Options are passed by
    name: their order differs among versions of FlashAttention. Fake tensors give fake results.

    CUDA tensors run on compute capability 9.0, 10.0 and 10.3; what stands behind each is in the
    README's ladder of evidence. A call may be captured in a CUDA graph after one with the same
    shapes and options was made outside. CPU tensors run the same compiled kernel in the emulator,
    for the architecture in FA4_EMULATE_ARCH (sm_100a unless set).

    Raises:
        TypeError, ValueError: a dtype, shape, stride, option or kind of tensor that is not
            supported, for example a DTensor.
        NotImplementedError: the device has no kernel; or, in a backward pass, when gradients are
            differentiated.
    """
    tracing = torch.compiler.is_compiling()
    plain = not tracing and is_plain(q, k, v)
    if not (plain or tracing):
        _refuse_kinds(q, k, v)
    if not plain or _is_any_autocast_enabled():
        q, k, v = _autocast(q, k, v)
    options = (softmax_scale, causal, *_window(window_size), softcap, deterministic)
    if not plain or (
        torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    ):
        from fa4 import ops  # late, like `_launcher`

        results = ops.attention(q, k, v, *options)
        return results if return_lse else results[0]
    out, lse = attention(q, k, v, options, return_lse)
    return (out, lse) if return_lse else out


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options, with_lse: bool = True
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(out, lse) as `flash_attn_func` gives them, lse None unless asked for; no gradient is
    recorded. q, k and v have memory, see `is_plain`."""
    try:
        layouts, arch = (layout_of(q), layout_of(k), layout_of(v)), foreign_arch(q)
        call = _prepare(layouts, arch, with_lse, *options)
        addresses = q.data_ptr() | k.data_ptr() | v.data_ptr()
    except TypeError:  # perhaps only since an option cannot be hashed: say what it must be
        resolve(layouts, arch, *options)
        raise
    except (RuntimeError, ValueError):  # tensors of other kinds lack a shape, strides, an address
        _refuse_kinds(q, k, v)
        raise
    if call.copies or addresses % TMA_ALIGNMENT:
        q, k, v = addressable("q", q), addressable("k", k), addressable("v", v)
        return attention(q, k, v, options, with_lse)
    if is_elsewhere(call.device):
        with torch.cuda.device(call.device):
            return attention(q, k, v, options, with_lse)
    out = call.empty(*call.out)
    lse = call.empty(*call.lse) if with_lse else None
    if call.launch:
        call.launch(q, k, v, out, lse)
    else:
        out.zero_()
        if with_lse:
            lse.fill_(-torch.inf)
    return out, lse


def can_implement(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Support:
    """Say whether `flash_attn_func` with these arguments would run, and if not, why.

    Compiles nothing, launches nothing, reads no tensor contents. No for tensors that may have no
    memory (subclasses such as FakeTensor, those in transforms of torch.func).
    """
    try:
        _refuse_kinds(q, k, v, without_memory=True)
        options = (softmax_scale, causal, *_window(window_size), softcap, deterministic)
        resolve((layout_of(q), layout_of(k), layout_of(v)), foreign_arch(q), *options)
    except (TypeError, ValueError, NotImplementedError) as error:
        return Support(False, str(error))
    copies = [
        f"{name} is copied first: {reason}"
        for name, tensor in (("q", q), ("k", k), ("v", v))
        if (reason := tma_obstacle(with_plain_strides(tensor)))
    ]
    return Support(True, "; ".join(copies))


Options = tuple[float | None, bool, int | None, int | None, float, bool]
"""softmax_scale, causal, window_left, window_right, softcap, deterministic."""


def _autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What autocast makes of the arguments of an operator that it runs in lower precision."""
    first = tensors[0]
    if not (first.is_cuda or first.is_cpu) or not torch.is_autocast_enabled(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(
        tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor
        for tensor in tensors
    )


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def is_plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> bool:
    """Whether a call can go straight to the kernel; runs on every call.

    Not so for subclasses and in transforms of torch.func, where tensors have no address, under
    modes that watch operators or replace them, and for forward-mode derivatives: there only a call
    of an operator is noticed.
    """
    return (
        type(q) in _PLAIN
        and type(k) in _PLAIN
        and type(v) in _PLAIN
        and (not more or _PLAIN.issuperset(map(type, more)))
        and _innermost_transform() is None
        and not _len_torch_dispatch_stack()
        and forward_ad._current_level < 0
    )


def _refuse_kinds(*tensors: Any, without_memory: bool = False) -> None:
    """Raise TypeError for q, k, v that are no tensors, nested, not strided or distributed over
    processes, and, if told so, for those that may have no memory of their own."""
    distributed = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    for name, tensor in zip("qkv", tensors, strict=True):
        kind = type(tensor).__name__
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {kind}; it must be a torch.Tensor.")
        if tensor.is_nested:
            raise TypeError(
                f"{name} is nested; sequences of a batch have one length here. Call once for each."
            )
        if tensor.layout is not torch.strided:
            raise TypeError(f"{name} has layout {tensor.layout}; pass {name}.to_dense().")
        if isinstance(tensor, distributed):
            raise TypeError(
                f"{name} is a {kind}; attention is not distributed here. Shard it by batch or "
                "heads and pass the parts that are here: q.to_local(), or by "
                "torch.distributed.tensor.experimental.local_map."
            )
        if without_memory and (type(tensor) not in _PLAIN or _innermost_transform()):
            raise TypeError(
                f"{name} is a {kind} that may have no memory of its own; ask for a torch.Tensor or "
                "nn.Parameter, outside of torch.func."
            )


Layout = tuple[torch.Size, tuple[int, ...] | None, torch.dtype, torch.device]
"""Shape, strides or None where they are those of a contiguous tensor, dtype, device."""
Layouts = tuple[Layout, Layout, Layout]
"""Of q, k and v."""


def layout_of(tensor: torch.Tensor) -> Layout:
    """What must be equal for two calls to be the same but for addresses; runs on every call."""
    strides = None if tensor.is_contiguous() else tensor.stride()  # one is dear to make and to hash
    return tensor.shape, strides, tensor.dtype, tensor.device


def strides_of(layout: Layout) -> tuple[int, ...]:
    """In elements; of a dimension of size 1 any that addresses the same."""
    shape, strides, *_ = layout
    return contiguous_strides(shape) if strides is None else strides


@dataclass(frozen=True, slots=True)
class _Call:
    """What a call's layouts and options decide."""

    out: Memory
    lse: Memory
    empty: Callable[..., torch.Tensor]
    device: int | None  # that must be the current one
    launch: Launch | None  # None when there is no (query, key) pair, or `copies`
    copies: bool  # strides that TMA cannot address


@lru_cache(maxsize=4096, typed=True)  # typed: causal=1 is refused after causal=True, too
def _prepare(layouts: Layouts, arch: str | None, with_lse: bool, *options: Any) -> _Call:
    """Check, plan, compile. `arch`: None for the device's own, see `foreign_arch`; `options` as in
    `Options`."""
    problem, plan = resolve(layouts, arch, *options)
    (_, _, dtype, device), strides = layouts[0], [strides_of(layout) for layout in layouts]
    rows = problem.batch, problem.seqlen_q, problem.heads_q
    out, lse = (*rows, problem.head_dim_v), (rows[0], rows[2], rows[1])
    out_strides = contiguous_strides(out)
    copies, launch = any(stride_obstacle(s, dtype.itemsize) for s in strides), None
    if not problem.empty and not copies:
        if device.type == "cpu":
            _announce_emulator(plan.arch)
        launch = _launcher().prepare(problem, plan, (*strides, out_strides), device, with_lse)
    return _Call(
        out=(out, out_strides, dtype),
        lse=(lse, contiguous_strides(lse), torch.float32),
        empty=EMPTY[device.type],
        device=index_of(device),
        launch=launch,
        copies=copies,
    )


def resolve(
    layouts: Layouts,
    arch: str | None,
    scale: float | None,
    causal: bool,
    left: int | None,
    right: int | None,
    softcap: float,
    deterministic: bool,
) -> tuple[Problem, BasePlan]:
    """The checked problem and its plan; parameters as for `_prepare`."""
    shapes, _, dtypes, devices = zip(*layouts, strict=True)
    for name, device in zip("qkv", devices, strict=True):
        if device != devices[0]:
            raise ValueError(
                f"{name} is on {device} but q is on {devices[0]}; move them to one device."
            )
    for name, (shape, strides, *_) in zip("qkv", layouts, strict=True):
        if strides and len(shape) == 4 and strides[3] != 1 and shape[3] > 1:
            raise ValueError(
                f"{name} has strides {strides}; the last must be 1. Pass {name}.contiguous()."
            )
    batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, head_dim_v = _sizes(*shapes)
    problem = Problem(
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=_dtype_name(dtypes),
        causal=causal,
        window_left=left,
        window_right=right,
        softcap=softcap,
        scale=default_scale(head_dim) if scale is None else scale,
        deterministic=deterministic,
    )
    return problem, plan_forward(problem, arch or native_arch(devices[0]))


def _sizes(q: torch.Size, k: torch.Size, v: torch.Size) -> tuple[int, ...]:
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) != 4:
            raise ValueError(
                f"{name} has shape {tuple(shape)}; it must be (batch, seqlen, heads, head_dim)."
            )
    if q[0] != k[0] or q[3] != k[3]:
        raise ValueError(f"q {tuple(q)} and k {tuple(k)} must agree in batch (0) and head_dim (3).")
    if k[:3] != v[:3]:
        raise ValueError(
            f"k {tuple(k)} and v {tuple(v)} must agree in batch (0), seqlen_k (1) and heads (2)."
        )
    if q[3] == 0:
        raise ValueError(f"q has shape {tuple(q)}; head_dim must be a positive multiple of 8.")
    return q[0], q[1], k[1], q[2], k[2], q[3], v[3]


def _dtype_name(dtypes: tuple[torch.dtype, ...]) -> str:
    if len(set(dtypes)) > 1:
        raise TypeError("q, k, v have dtypes {}, {}, {}; they must be equal.".format(*dtypes))
    if dtypes[0] not in _DTYPE_NAMES:
        allowed = " or ".join(_DTYPE_NAMES.values())
        raise TypeError(f"q, k, v have dtype {dtypes[0]}; cast them to {allowed}.")
    return _DTYPE_NAMES[dtypes[0]]


def _window(window_size: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise TypeError(
            f"window_size is {window_size!r}; it must be (left, right), each an int or None."
        ) from None
    return left, right


def emulated_arch() -> str:
    """Architecture that CPU tensors are emulated for. Raises ValueError for an unknown one."""
    arch = os.environ.get("FA4_EMULATE_ARCH", EMULATED_ARCHS[0])
    if arch not in EMULATED_ARCHS:
        raise ValueError(
            f"FA4_EMULATE_ARCH is {arch!r}; this version emulates {', '.join(EMULATED_ARCHS)}."
        )
    return arch


def foreign_arch(q: torch.Tensor) -> str | None:
    """Architecture to compile for where kernels do not run natively: in the emulator, or in a
    session that takes CUDA tensors."""
    if q.is_cpu:
        return emulated_arch()
    here = current_session() if open_sessions else None
    return here.arch if here is not None and here.takes == q.device.type else None


@lru_cache
def native_arch(device: torch.device) -> str:
    """Architecture of a GPU, as ptxas names it. Raises NotImplementedError where no kernel runs."""
    capabilities = " or ".join(f"{major}.{minor}" for major, minor in NATIVE_ARCHS)
    remedy = (
        f"Supported: CUDA devices of compute capability {capabilities}, and CPU tensors (emulated)."
    )
    if device.type != "cuda":
        raise NotImplementedError(f"No kernel for device {str(device)!r}. {remedy}")
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) not in NATIVE_ARCHS:
        name = torch.cuda.get_device_name(device)
        raise NotImplementedError(
            f"No kernel for {name} ({device}, compute capability {major}.{minor}). {remedy}"
        )
    return NATIVE_ARCHS[major, minor]


@lru_cache
def _announce_emulator(arch: str) -> None:
    logger.warning(
        "CPU tensors: the compiled %s kernel runs in the emulator, far slower than on a GPU", arch
    )


@lru_cache(maxsize=1)
def _launcher() -> ModuleType:
    """fa4.launch, imported late: it brings the compiler along."""
    from fa4 import launch

    return launch
