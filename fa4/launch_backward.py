"""Torch tensors -> arguments of the compiled backward -> its launches on their device.

As in `launch`, what shapes, strides and options decide is prepared once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch

from fa4.allocation import EMPTY
from fa4.arguments import (
    BACKWARD_PER_CALL,
    SIZES,
    STRIDED,
    pack_backward_per_call,
    pack_backward_rest,
)
from fa4.compile import HostFunction, host_function
from fa4.emulator import current_session
from fa4.emulator.sessions import open_sessions
from fa4.launch import (
    Strides,
    check_launch,
    check_session,
    emulating,
    num_sms,
    refuse_session,
    section_sizes,
)
from fa4.plan_backward_base import FLOAT_BYTES, BackwardPlan
from fa4.plan_base import CHIPS, DTYPE_BYTES
from fa4.problem import Problem


class BackwardTensors(NamedTuple):
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

    def strides(self) -> tuple[Strides, ...]:
        """Of those in 16 bits, in the order of `STRIDED`."""
        return tuple(getattr(self, name).stride() for name in STRIDED)


BackwardLaunch = Callable[[BackwardTensors], None]


def prepare(
    problem: Problem, plan: BackwardPlan, strides: tuple[Strides, ...], device: torch.device
) -> BackwardLaunch:
    """What computes dq, dk and dv, on the current stream of a CUDA device, which must be the
    current one, or in a session.

    `strides`, in elements, are those of `STRIDED`. A launch checks nothing; threads may share it.

    Compiles and loads the kernels of a CUDA device. Raises ValueError inside a session that takes
    tensors of another kind of device, here and at each launch.
    """
    here = current_session()
    check_session(here, device)
    work = _Work(
        plan,
        _rest(problem, plan, strides),
        _offsets(workspace_parts(problem, plan)),
    )
    if device.type == "cpu" or here is not None:
        return _SessionLaunch(work)
    with torch.cuda.device(device):
        entry = host_function(plan, emulated=False)
    return _NativeLaunch(work, entry, device.index, num_sms(device))


@dataclass(frozen=True, slots=True)
class _Work:
    """What is the same in all launches of a problem, wherever they run."""

    plan: BackwardPlan
    rest: bytes  # of the argument block
    offsets: tuple[int, ...]  # in bytes, of the parts of the workspace; behind them, its size

    def workspace(self, device: torch.device) -> torch.Tensor:
        """Memory of one launch."""
        return EMPTY[device.type]((self.offsets[-1] // FLOAT_BYTES,), (1,), torch.float32)

    def block(self, tensors: BackwardTensors, workspace: torch.Tensor, num_ctas: int) -> bytes:
        """The argument block."""
        at = workspace.data_ptr()
        return (
            pack_backward_per_call(
                *[0 if tensor is None else tensor.data_ptr() for tensor in tensors],
                *[at + offset for offset in self.offsets[:-1]],
                num_ctas,
            )
            + self.rest
        )


@dataclass(frozen=True, slots=True)
class _NativeLaunch:
    """The warm path, see that of `launch`."""

    work: _Work
    entry: HostFunction
    device: int
    num_sms: int

    def __call__(self, tensors: BackwardTensors) -> None:
        if open_sessions:
            refuse_session(tensors.q)
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        workspace = self.work.workspace(tensors.q.device)
        block = self.work.block(tensors, workspace, self.num_sms)
        check_launch(self.entry(block, stream), self.work.plan)


@dataclass(frozen=True, slots=True)
class _SessionLaunch:
    """Launches in the innermost open session, or in one of the emulator's with its defaults."""

    work: _Work

    def __call__(self, tensors: BackwardTensors) -> None:
        plan, device = self.work.plan, tensors.q.device
        workspace = self.work.workspace(device)
        named = tensors._asdict() | {"workspace": workspace}
        with emulating(plan, device, named) as (here, stream):
            block = self.work.block(tensors, workspace, here.device.num_sms)
            check_launch(host_function(plan, emulated=True)(block, stream), plan)


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


def _offsets(parts: dict[str, int]) -> tuple[int, ...]:
    """In bytes, of the workspace's parts in the order of the argument block, and its size."""
    floats = (parts[name] for name in BACKWARD_PER_CALL if name in parts)
    return tuple(FLOAT_BYTES * end for end in accumulate(floats, initial=0))


def _rest(problem: Problem, plan: BackwardPlan, strides: tuple[Strides, ...]) -> bytes:
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
