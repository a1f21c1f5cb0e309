"""One random problem: the result of a GPU beside the reference, by the error rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from bench.hopper.cuda import CudaDevice
from bench.hopper.problems import Trial, upstream
from fa4.reference import (
    LSE_TOLERANCE,
    Agreement,
    GradientAgreement,
    compare,
    compare_gradients,
)

RIGHT, WRONG, SKIPPED = "right", "wrong", "skipped for memory"

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor]]
Agreements = tuple[Agreement | GradientAgreement, ...]
Check = Callable[[Trial, Attention, str], Agreements]


@dataclass(frozen=True)
class Record:
    """What came of one problem. shares: errors over their limits, by result."""

    seed: int
    problem: str
    outcome: str  # RIGHT, WRONG or SKIPPED
    reason: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    lost: bool = False  # the GPU, with this problem


def attempt(trial: Trial, check: Check, attention: Attention, device: str) -> Record:
    """Run and compare; never raises for what the problem does."""
    outcome, reason, shares = RIGHT, "", {}
    try:
        agreements = check(trial, attention, device)
        shares = {name: share for a in agreements for name, share in _shares(a).items()}
        reason = ", ".join(str(a) for a in agreements if not a.ok)
        outcome = WRONG if reason else RIGHT
    except torch.OutOfMemoryError as error:
        outcome, reason = SKIPPED, _line(error)
    except Exception as error:  # whatever it is, it is the finding
        outcome, reason = WRONG, _line(error)
    if outcome == SKIPPED and device == "cuda":
        torch.cuda.empty_cache()  # other processes may need what this one holds
    lost = outcome == WRONG and device == "cuda" and not CudaDevice().alive()
    return Record(trial.seed, str(trial), outcome, reason, shares, lost)


def check_forward(trial: Trial, attention: Attention, device: str) -> Agreements:
    """O and LSE."""
    problem, inputs = trial.problem(), trial.inputs(device)
    out, lse = _poisoned(attention, inputs, trial)
    return (compare(problem, inputs, out, lse),)


def check_backward(trial: Trial, attention: Attention, device: str) -> Agreements:
    """O and LSE, and dQ, dK, dV for random gradients of both."""
    problem, inputs = trial.problem(), trial.inputs(device)
    leaves = tuple(t.detach().requires_grad_() for t in inputs)
    out, lse = _poisoned(attention, leaves, trial)
    grads = upstream(out, lse, trial.seed)
    for t in inputs:
        poison_free_memory(t.shape, t.dtype, device)
    results = torch.autograd.grad((out, lse), leaves, grads)
    forward = compare(problem, inputs, out.detach(), lse.detach())
    return forward, compare_gradients(problem, inputs, grads, results)


def poison_free_memory(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Leave NaN where the allocator puts the next tensor of this size: an unwritten result."""
    torch.full(shape, torch.nan, dtype=dtype, device=device)


def _poisoned(
    attention: Attention, inputs: tuple[torch.Tensor, ...], trial: Trial
) -> tuple[torch.Tensor, torch.Tensor]:
    q, _, v = inputs
    poison_free_memory((*q.shape[:3], v.shape[3]), q.dtype, q.device.type)
    poison_free_memory((q.shape[0], q.shape[2], q.shape[1]), torch.float32, q.device.type)
    return attention(*inputs, **trial.options)


def _shares(agreement: Agreement | GradientAgreement) -> dict[str, float]:
    """Errors over their limits; what is no number, is infinite."""
    if isinstance(agreement, Agreement):
        found = {
            "O": agreement.out_error / agreement.out_limit,
            "LSE": agreement.lse_error / LSE_TOLERANCE,
        }
    else:
        rows = zip(("dQ", "dK", "dV"), agreement.errors, agreement.limits, strict=True)
        found = {name: error / limit for name, error, limit in rows}
    return {name: math.inf if math.isnan(share) else share for name, share in found.items()}


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
