"""Torch tensors -> arguments of the compiled backward -> its launches on their device."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

import torch

from fa4.arguments import (
    BACKWARD_PER_CALL,
    SIZES,
    STRIDED,
    pack_backward_per_call,
    pack_backward_rest,
)
from fa4.compile import compile_forward
from fa4.emulator import current_session, session
from fa4.emulator.hook import the_hook
from fa4.launch import check_launch, check_session, labels, num_sms, section_sizes, stream_of
from fa4.plan_backward_base import FLOAT_BYTES, BackwardPlan
from fa4.plan_base import CHIPS, DTYPE_BYTES
from fa4.problem import Problem


@dataclass(frozen=True)
class BackwardTensors:
    """What a backward pass reads and writes. Bases and all strides but the last (1) of those in 16
    bits are multiples of 16 bytes; the others are float32 and contiguous.

    q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv), o and do (B, Sq, H, Dv), lse and its
    gradient dlse (B, H, Sq), the latter None when it is zero; dq, dk, dv like q, k, v.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    do: torch.Tensor
    lse: torch.Tensor
    dlse: torch.Tensor | None
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor

    def present(self) -> dict[str, torch.Tensor]:
        """By name, without what is None."""
        return {name: t for name, t in vars(self).items() if t is not None}


def backward(problem: Problem, plan: BackwardPlan, tensors: BackwardTensors) -> None:
    """Compute dq, dk and dv, on the current stream of a CUDA device or emulated.

    Raises ValueError inside a session that takes tensors of another kind of device.
    """
    parts, device = workspace_parts(problem, plan), tensors.q.device
    workspace = torch.empty(sum(parts.values()), dtype=torch.float32, device=device)
    memory = tensors.present() | {"workspace": workspace}
    if tensors.q.is_cuda and current_session() is None:
        with torch.cuda.device(device):
            entry = compile_forward(plan, emulated=False)
            stream = torch._C._cuda_getCurrentRawStream(device.index)
            block = _block(problem, plan, memory, parts, num_sms(device))
            check_launch(entry(block, stream), plan)
    else:
        _launch_in_session(problem, plan, memory, parts)


def _block(
    problem: Problem,
    plan: BackwardPlan,
    memory: dict[str, torch.Tensor],
    parts: dict[str, int],
    num_ctas: int,
) -> bytes:
    """The argument block. memory: the tensors and the workspace, which has `parts`."""
    values = {name: tensor.data_ptr() for name, tensor in memory.items()}
    at = values.pop("workspace")
    for name, floats in parts.items():
        values[name] = at
        at += floats * FLOAT_BYTES
    values["num_ctas"] = num_ctas
    per_call = pack_backward_per_call(*(values.get(name, 0) for name in BACKWARD_PER_CALL))
    strides = tuple(memory[name].stride() for name in STRIDED)
    return per_call + _rest(problem, plan, strides)


def workspace_parts(problem: Problem, plan: BackwardPlan) -> dict[str, int]:
    """Floats, or as many 32-bit integers, of each part of the workspace; see BackwardRows."""
    blocks = -(-problem.seqlen_q // plan.m_tile) * problem.heads_q * problem.batch
    return {
        "dq_sum": blocks * plan.dq_block_floats,
        "lse_log2": blocks * plan.m_tile,
        "delta": blocks * plan.m_tile,
        "turns": blocks * plan.turns if plan.deterministic else 0,
        "tile_counter": int(plan.persistent),
    }


def _launch_in_session(
    problem: Problem,
    plan: BackwardPlan,
    memory: dict[str, torch.Tensor],
    parts: dict[str, int],
) -> None:
    """In the innermost open session, or in one of its own with the default schedule."""
    with ExitStack() as stack:
        here = current_session() or stack.enter_context(session(arch=plan.arch))
        check_session(here, memory["q"].device)
        stack.enter_context(here.lend(memory, labels(plan)))
        stack.enter_context(the_hook().call())
        stream = stream_of(memory["q"].device, stack)
        block = _block(problem, plan, memory, parts, here.device.num_sms)
        check_launch(compile_forward(plan, emulated=True)(block, stream), plan)


@lru_cache(maxsize=4096)
def _rest(problem: Problem, plan: BackwardPlan, strides: tuple[tuple[int, ...], ...]) -> bytes:
    """The argument block of a launch but for what differs from call to call."""
    values: dict[str, int | float] = {size: getattr(problem, size) for size in SIZES}
    for name, (batch, row, head, _) in zip(STRIDED, strides, strict=True):
        values |= {f"{name}_batch": batch, f"{name}_row": row, f"{name}_head": head}
    return pack_backward_rest(
        values
        | {
            "left": problem.window_left or 0,  # read only when the plan has the bound
            "right": problem.window_right or 0,
            **sections(problem, plan),
            "gradient_scale": problem.scale,
            **problem.factors,
        }
    )


def sections(problem: Problem, plan: BackwardPlan) -> dict[str, int]:
    """Key/value heads whose tiles are taken together: queries, dO and sums of dQ should fit in a
    third of L2.
    """
    row_bytes = (plan.head_dim + plan.head_dim_v) * DTYPE_BYTES + plan.head_dim * FLOAT_BYTES
    head_bytes = problem.seqlen_q * problem.group_size * row_bytes
    fitting = max(1, CHIPS[plan.arch].l2_bytes // 3 // head_bytes)
    tiles = -(-problem.seqlen_k // plan.n_block)
    return section_sizes(plan, problem.heads_kv * problem.batch, tiles, fitting)
