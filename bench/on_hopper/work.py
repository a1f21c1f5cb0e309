"""What one process of `bench on-hopper` does with its tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bench.hopper.attempt import poison_free_memory
from bench.hopper.problems import upstream
from bench.on_hopper.trials import Task
from fa4.on_hopper.modes import MODES
from fa4.on_hopper.sessions import gpu_lost
from fa4.reference import AGREEING, UNITS, compare, compare_gradients, units_apart

# The GPU's ex2 and rcp err by some 1e-7. A cap of 30 or 50 multiplies that, and then more values of
# P are rounded the other way; LSE takes the error as it is.
AGREEING_CAPPED = 0.995
LSE_APART = 1e-4


def work(
    tasks: Sequence[Task], seconds: float, emulate: bool, put: Callable[[dict[str, Any]], None]
) -> None:
    """Do the tasks on the current CUDA device and `put` a record of each.

    Stops after `seconds`, or when the GPU is lost.
    """
    begin = time.monotonic()
    for task in tasks:
        if time.monotonic() - begin > seconds:
            break
        record, lost = attempt(task, emulate)
        put(record)
        if lost:
            break


def attempt(task: Task, emulate: bool) -> tuple[dict[str, Any], bool]:
    """The record of a task, and whether the GPU can go on after it."""
    begin = time.monotonic()
    record = {"mode": task.mode, "seed": task.trial.seed, "problem": str(task.trial), "fault": ""}
    lost = False
    try:
        record |= run_backward(task) if task.backward else run(task, emulate)
    except Exception as error:  # whatever it is, it is the finding
        record["fault"], lost = f"{type(error).__name__}: {error}", gpu_lost(error)
    record["seconds"] = round(time.monotonic() - begin, 3)
    return record, lost


def run(task: Task, emulate: bool) -> dict[str, Any]:
    """Run the problem on Hopper and compare it."""
    import fa4

    trial, modes = task.trial, MODES[task.mode]
    inputs = trial.inputs("cuda")
    q, _, v = inputs
    with fa4.on_hopper.Session(modes, seed=trial.seed) as here:
        poison_free_memory((*q.shape[:3], v.shape[3]), q.dtype, "cuda")
        poison_free_memory((q.shape[0], q.shape[2], q.shape[1]), torch.float32, "cuda")
        out, lse = fa4.flash_attn_func(*inputs, return_lse=True, **trial.options)
    agreement = compare(trial.problem(), inputs, out, lse)
    record = {
        "kernel": here.launches[0].name if here.launches else "",
        "kernel_seconds": round(sum(launch.seconds for launch in here.launches), 5),
        "out_error": agreement.out_error,
        "out_limit": agreement.out_limit,
        "lse_error": agreement.lse_error,
    }
    if not agreement.ok:
        record["fault"] = str(agreement)
    elif emulate:
        record |= against_emulator(task, (out, lse))
    return record


def run_backward(task: Task) -> dict[str, Any]:
    """Run the problem and its gradients on Hopper and compare those with float64.

    The operator is called as autograd would: that would do so in a thread of its own.
    """
    import fa4.ops

    trial, options = task.trial, task.trial.options
    inputs, problem = trial.inputs("cuda"), task.trial.problem()
    with fa4.on_hopper.Session(MODES[task.mode], seed=trial.seed) as here:
        out, lse = fa4.flash_attn_func(*inputs, return_lse=True, **options)
        grad_out, grad_lse = upstream(out, lse, trial.seed)
        grads = grad_out, grad_lse if trial.seed % 2 else None
        given = *grads, *inputs, out, lse
        results = torch.ops.fa4.attention_backward(*given, *fa4.ops.options_of(problem))
    agreement = compare_gradients(problem, inputs, grads, results)
    error, limit = max(
        zip(agreement.errors, agreement.limits, strict=True), key=lambda pair: pair[0] / pair[1]
    )
    return {
        "kernel": here.launches[-2].name if here.launches else "",
        "kernel_seconds": round(sum(launch.seconds for launch in here.launches), 5),
        "out_error": error,
        "out_limit": limit,
        "fault": "" if agreement.ok else str(agreement),
    }


def against_emulator(task: Task, found: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Any]:
    """The same inputs on the CPU."""
    import fa4

    inputs = [t.cpu() for t in task.trial.inputs("cuda")]
    out, lse = fa4.flash_attn_func(*inputs, return_lse=True, **task.trial.options)
    units, capped = UNITS[out.dtype], "softcap" in task.trial.options
    share = (units_apart(out, found[0].cpu()) <= units).float().mean().item()
    seen = torch.isfinite(lse)
    lse_apart = (lse - found[1].cpu())[seen].abs().max().item()
    fault = ""
    if share < (AGREEING_CAPPED if capped else AGREEING) or lse_apart > LSE_APART:
        fault = f"{share:.5f} of O within {units} units, LSE {lse_apart:.1e} apart"
    return {
        "agreeing": share,
        "elements": out.numel(),
        "lse_apart": lse_apart,
        "fault": fault,
    }
