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
from fa4.launch import check_launch, check_session, labels, stream_of
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
    present = tensors.present()
    workspace = torch.empty(
        workspace_floats(problem, plan), dtype=torch.float32, device=tensors.q.device
    )
    block = _block(problem, plan, present, workspace)
    if tensors.q.is_cuda and current_session() is None:
        with torch.cuda.device(tensors.q.device):
            entry = compile_forward(plan, emulated=False)
            stream = torch._C._cuda_getCurrentRawStream(tensors.q.device.index)
            check_launch(entry(block, stream), plan)
    else:
        _launch_in_session(plan, block, present | {"workspace": workspace})


def _block(
    problem: Problem,
    plan: BackwardPlan,
    tensors: dict[str, torch.Tensor],
    workspace: torch.Tensor,
) -> bytes:
    """The argument block."""
    sums, rows = _row_counts(problem, plan)
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    addresses["dq_sum"] = workspace.data_ptr()
    addresses["lse_log2"] = addresses["dq_sum"] + sums * FLOAT_BYTES
    addresses["delta"] = addresses["lse_log2"] + rows * FLOAT_BYTES
    addresses["turns"] = addresses["delta"] + rows * FLOAT_BYTES
    per_call = pack_backward_per_call(*(addresses.get(name, 0) for name in BACKWARD_PER_CALL))
    strides = tuple(tensors[name].stride() for name in STRIDED)
    return per_call + _rest(problem, plan, strides)


def workspace_floats(problem: Problem, plan: BackwardPlan) -> int:
    """Size of the workspace: the sum of dQ, LSE and delta, by padded rows; turns, by blocks."""
    sums, rows = _row_counts(problem, plan)
    turns = rows // plan.m_tile * plan.turns if plan.deterministic else 0
    return sums + 2 * rows + turns


def _row_counts(problem: Problem, plan: BackwardPlan) -> tuple[int, int]:
    """(floats of dQ's sum, padded query rows of all heads)."""
    blocks = -(-problem.seqlen_q // plan.m_tile) * problem.heads_q * problem.batch
    return blocks * plan.dq_block_floats, blocks * plan.m_tile


def _launch_in_session(plan: BackwardPlan, block: bytes, tensors: dict[str, torch.Tensor]) -> None:
    """In the innermost open session, or in one of its own with the default schedule."""
    with ExitStack() as stack:
        here = current_session() or stack.enter_context(session(arch=plan.arch))
        check_session(here, tensors["q"].device)
        stack.enter_context(here.lend(tensors, labels(plan)))
        stack.enter_context(the_hook().call())
        stream = stream_of(tensors["q"].device, stack)
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
            "section": heads_per_section(problem, plan),
            "gradient_scale": problem.scale,
            **problem.factors,
        }
    )


def heads_per_section(problem: Problem, plan: BackwardPlan) -> int:
    """Key/value heads whose queries, dO and sums of dQ fit in a third of L2 together."""
    row_bytes = (plan.head_dim + plan.head_dim_v) * DTYPE_BYTES + plan.head_dim * FLOAT_BYTES
    head_bytes = problem.seqlen_q * problem.group_size * row_bytes
    heads = max(1, CHIPS[plan.arch].l2_bytes // 3 // head_bytes)
    return min(heads, problem.heads_kv * problem.batch)
