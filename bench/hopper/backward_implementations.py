"""The backward passes that are compared, each bound to the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from bench.hopper.implementations import OURS, Implementation
from bench.hopper.passes import Given
from fa4 import ops
from fa4.launch_backward import BackwardTensors, prepare
from fa4.plan_backward import plan_backward
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.problem import Problem, default_scale, example_problem

ARCH = "sm_90a"
Changes = Mapping[str, Any]


def backward_implementations(
    ours_only: bool = False, variants: tuple[Changes, ...] = ()
) -> list[Implementation]:
    """Ours first, then ours with changes to its tuning, then every peer, here or not."""
    ours = [_ours(), *map(_variant, variants)]
    return ours if ours_only else [*ours, _cudnn(), _flash_attn_4()]


def tuned(plan: HopperBackwardPlan, changes: Changes) -> HopperBackwardPlan:
    """The plan with changes to its tuning, or to whether it is deterministic."""
    of_tuning = {name: value for name, value in changes.items() if name != "deterministic"}
    deterministic = changes.get("deterministic", plan.deterministic)
    return replace(plan, deterministic=deterministic, tuning=replace(plan.tuning, **of_tuning))


def _ours() -> Implementation:
    def bind(inputs: Given, causal: bool) -> Callable[[], Given]:
        q, k, v, out, lse, grad_out = inputs
        options = (None, causal, None, None, 0.0, False)
        call = torch.ops.fa4.attention_backward
        return lambda: call(grad_out, None, q, k, v, out, lse, *options)

    return Implementation(OURS, bind, output=_first_three)


def _variant(changes: Changes) -> Implementation:
    def bind(inputs: Given, causal: bool) -> Callable[[], Given]:
        q, k, v, out, lse, grad_out = inputs
        plan = tuned(plan_backward(_problem(q, k, causal), ARCH), changes)
        problem = replace(_problem(q, k, causal), deterministic=plan.deterministic)

        def tensors() -> BackwardTensors:
            grads = (torch.empty_like(t) for t in (q, k, v))
            return BackwardTensors(q, k, v, out, grad_out, lse, None, *grads)

        launch = prepare(problem, plan, tensors().strides(), q.device)

        def call() -> Given:
            given = tensors()
            launch(given)
            return given[-3:]

        return call

    return Implementation(f"{OURS} {changes}", bind, output=_first_three)


def _problem(q: torch.Tensor, k: torch.Tensor, causal: bool) -> Problem:
    batch, length, heads, head_dim = q.shape
    return example_problem(
        head_dim,
        batch=batch,
        seqlen_q=length,
        seqlen_k=length,
        heads_q=heads,
        heads_kv=k.shape[2],
        dtype=str(q.dtype).removeprefix("torch."),
        causal=causal,
        scale=default_scale(head_dim),
    )


def _cudnn() -> Implementation:
    """cuDNN through torch's operators, which a graph can capture; autograd cannot be."""

    def bind(inputs: Given, causal: bool) -> Callable[[], Given]:
        q, k, v, _, _, grad_out = (t.transpose(1, 2) for t in inputs)
        forward = torch.ops.aten._scaled_dot_product_cudnn_attention
        call = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
        # dropout probability, causal, debug mask
        out, lse, *lengths, seed, offset, _ = forward(q, k, v, None, True, 0.0, causal, False)
        saved = (q, k, v, out, lse, seed, offset, None, *lengths)  # None: no bias
        return lambda: call(grad_out, *saved, 0.0, causal)

    available = torch.backends.cudnn.is_available()
    return Implementation(
        "cudnn",
        bind,
        output=lambda grads: tuple(t.transpose(1, 2) for t in grads),
        missing="" if available else "this torch has no cuDNN",
    )


def _flash_attn_4() -> Implementation:
    missing, call = "", None
    try:
        from flash_attn.cute.interface import _flash_attn_bwd as call
    except Exception as error:  # whatever its import raises is the reason that is reported
        missing = f"{type(error).__name__}: {error}"

    def bind(inputs: Given, causal: bool) -> Callable[[], Given]:
        q, k, v, out, lse, grad_out = inputs
        return lambda: call(q, k, v, out, grad_out, lse, causal=causal)

    return Implementation("flash-attn-4", bind, output=_first_three, missing=missing)


def _first_three(results: Given) -> Given:
    return tuple(results[:3])


assert ops  # registers torch.ops.fa4
