"""The gradient of attention for torch tensors: check, plan, prepare once; then allocate and launch.

A call that was made before with the same layouts and options costs one cache hit for all but its
allocations and its launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from fa4 import api
from fa4.addressing import TMA_ALIGNMENT, addressable, contiguous_strides, stride_obstacle
from fa4.allocation import EMPTY, Memory, index_of, is_elsewhere
from fa4.launch_backward import BackwardLaunch, BackwardTensors, prepare
from fa4.plan_backward import plan_backward
from fa4.problem import Problem
from fa4.schema import Gradients


def attention_backward(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *options: Any,
) -> Gradients:
    """Gradients of q, k and v, contiguous.

    grad_out and grad_lse are those of out and lse, which `flash_attn_func` gave for q, k, v and the
    same `options` (as in `api.Options`); grad_lse None is zero. No gradient is recorded.

    Raises TypeError, ValueError, NotImplementedError like `flash_attn_func`, ValueError also for
    what does not belong to q, k and v.
    """
    *masks, deterministic = options
    masks.append(deterministic or torch.are_deterministic_algorithms_enabled())
    layouts = api.layout_of(q), api.layout_of(k), api.layout_of(v)
    saved = api.layout_of(out), api.layout_of(grad_out), api.layout_of(lse)
    dlse = None if grad_lse is None else api.layout_of(grad_lse)
    call = _prepare(layouts, (*saved, dlse), api.foreign_arch(q), *masks)
    addresses = q.data_ptr() | k.data_ptr() | v.data_ptr() | out.data_ptr() | grad_out.data_ptr()
    if call.copies or addresses % TMA_ALIGNMENT:
        given = {"q": q, "k": k, "v": v, "out": out, "grad_out": grad_out}
        q, k, v, out, grad_out = (_usable(name, tensor) for name, tensor in given.items())
        return attention_backward(grad_out, grad_lse, q, k, v, out, lse, *options)
    if is_elsewhere(call.device):
        with torch.cuda.device(call.device):
            return attention_backward(grad_out, grad_lse, q, k, v, out, lse, *options)
    dq, dk, dv = [call.empty(*layout) for layout in call.gradients]
    if call.launch is None:
        return dq.zero_(), dk.zero_(), dv.zero_()
    given_lse = lse.contiguous(), None if grad_lse is None else grad_lse.contiguous()
    call.launch(BackwardTensors(q, k, v, out, grad_out, *given_lse, dq, dk, dv))
    return dq, dk, dv


@dataclass(frozen=True, slots=True)
class _Call:
    """What a call's layouts and options decide."""

    gradients: tuple[Memory, ...]
    empty: Callable[..., torch.Tensor]
    device: int | None  # that must be the current one
    launch: BackwardLaunch | None  # None when there is no (query, key) pair, or `copies`
    copies: bool  # strides that TMA cannot address


@lru_cache(maxsize=4096, typed=True)  # as that of `api`
def _prepare(
    layouts: api.Layouts, others: tuple[api.Layout | None, ...], arch: str | None, *options: Any
) -> _Call:
    """Check, plan, compile. `others`: layouts of out, its gradient, lse and its gradient; `arch`
    and `options` as in `api`."""
    problem, _ = api.resolve(layouts, arch, *options)
    device = layouts[0][3]
    _check(problem, layouts[0], others)
    shapes = [tuple(shape) for shape, *_ in layouts]
    gradients = tuple((shape, contiguous_strides(shape), layouts[0][2]) for shape in shapes)
    read = [api.strides_of(layout) for layout in (*layouts, *others[:2])]
    copies, launch = not problem.empty and any(map(_unusable, read)), None
    if not problem.empty and not copies:
        plan = plan_backward(problem, arch or api.native_arch(device))
        strides = (*read, *(stride for _, stride, _ in gradients))
        launch = prepare(problem, plan, strides, device)
    return _Call(gradients, EMPTY[device.type], index_of(device), launch, copies)


def _check(problem: Problem, q: api.Layout, others: tuple[api.Layout | None, ...]) -> None:
    """Raise ValueError for results, or gradients of them, that another problem has."""
    _, _, dtype, device = q
    rows = problem.batch, problem.seqlen_q, problem.heads_q
    of_out = (*rows, problem.head_dim_v), dtype, device
    of_lse = (rows[0], rows[2], rows[1]), torch.float32, device
    names, expected = ("out", "grad_out", "lse", "grad_lse"), (of_out, of_out, of_lse, of_lse)
    for name, layout, wanted in zip(names, others, expected, strict=True):
        if layout is not None and (layout[0], *layout[2:]) != wanted:
            raise ValueError(
                f"{name} has shape {tuple(layout[0])}, {layout[2]}, on {layout[3]}; that of q, k "
                f"and v has shape {wanted[0]}, {wanted[1]}, on {wanted[2]}."
            )


def _unusable(strides: tuple[int, ...]) -> bool:
    return strides[3] != 1 or stride_obstacle(strides, torch.bfloat16.itemsize) is not None


def _usable(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return addressable(name, tensor if tensor.stride(3) == 1 else tensor.contiguous())
