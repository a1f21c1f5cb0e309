"""`python -m bench hopper-backward`: gradients on this GPU, checked at random and timed."""

from __future__ import annotations

import argparse
import ast
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.hopper.cells import Cell
from bench.hopper.cuda import CudaDevice
from bench.hopper.implementations import gemm
from bench.hopper.problems import Trial, draw
from bench.hopper.timing import Work, estimate_ms, interleave
from fa4 import api, compile, ops, reference
from fa4.launch_backward import BackwardTensors, backward
from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.plan_base import BasePlan
from fa4.problem import Problem, default_scale

ARCH = "sm_90a"
PASSES = 2.5  # FLOPs of a backward over those of a forward: five products instead of two
Call = Callable[[], Any]


def main(argv: list[str]) -> int:
    """Returns 1 when a gradient was wrong."""
    parser = argparse.ArgumentParser(prog="bench hopper-backward", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="for everything")
    parser.add_argument("--trials", type=int, default=100, help="random problems to check")
    parser.add_argument("--kernels", type=int, default=24, help="that the random problems use")
    parser.add_argument("--seed", type=int, default=0, help="of the first random problem")
    parser.add_argument("--cells", nargs="*", default=CELLS, help="e.g. d128-causal-4096[-32-8]")
    parser.add_argument(
        "--tunings",
        nargs="*",
        default=[],
        help="changes to the tuning to time as well, e.g. \"{'m_block': 64}\"",
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="time deterministic=True as well"
    )
    arguments = parser.parse_args(argv)
    end = time.monotonic() + arguments.seconds
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    tunings = [ast.literal_eval(text) for text in arguments.tunings]
    cells = [parse_cell(text) for text in arguments.cells]
    trials = list(_trials(arguments))
    problems = [_problem(cell) for cell in cells]
    both = (False, True)[: 1 + arguments.deterministic]
    _compile_all([replace(p, deterministic=d) for p in problems for d in both], tunings, trials)
    variants = {str(changes): partial(_tuned, changes=changes) for changes in tunings}
    if arguments.deterministic:
        variants["deterministic"] = partial(_ours, deterministic=True)
    for cell in cells:
        if time.monotonic() < end:
            time_cell(cell, variants)
    failures = done = 0
    for trial in trials:
        if time.monotonic() > end:
            break
        failures += not check_trial(trial)
        done += 1
    print(f"{done} random problems, {failures} failures", flush=True)
    return 1 if failures else 0


CELLS = [f"d{d}-{mask}-4096" for d in (64, 128) for mask in ("full", "causal")]


def parse_cell(text: str) -> Cell:
    """d128-causal-4096 or d128-causal-4096-32-8 (query heads, key/value heads)."""
    dim, mask, length, *heads = text.split("-")
    head_dim = int(dim[1:])
    heads_q, heads_kv = map(int, heads) if heads else (2048 // head_dim,) * 2
    return Cell(head_dim, mask == "causal", int(length), heads_q, heads_kv)


# ---- checking


def _trials(arguments: argparse.Namespace) -> Iterator[Trial]:
    """Random problems of at most so many kernels."""
    kernels, seed, count = set(), arguments.seed, 0
    while count < arguments.trials:
        trial = draw(seed)
        seed += 1
        if trial.kernel not in kernels:
            if len(kernels) == arguments.kernels:
                continue
            kernels.add(trial.kernel)
        count += 1
        yield trial


def check_trial(trial: Trial) -> bool:
    """Gradients of a random problem by the error rule; prints what is wrong."""
    leaves = tuple(t.detach().requires_grad_() for t in trial.inputs("cuda"))
    try:
        out, lse = api.flash_attn_func(*leaves, return_lse=True, **trial.options)
        grad_out = torch.randn_like(out)
        grad_lse = torch.randn_like(lse) if trial.seed % 2 else torch.zeros_like(lse)
        results = torch.autograd.grad((out, lse), leaves, (grad_out, grad_lse))
        inputs = tuple(t.detach() for t in leaves)
        agreement = reference.compare_gradients(
            trial.problem(), inputs, (grad_out, grad_lse), results
        )
    except torch.OutOfMemoryError:
        return True
    if not agreement.ok:
        print("WRONG", trial.seed, trial, agreement, flush=True)
    return agreement.ok


# ---- timing


@dataclass(frozen=True)
class Inputs:
    """Of one cell, with the results of the forward pass."""

    cell: Cell
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    do: torch.Tensor


def draw_inputs(cell: Cell) -> Inputs:
    """Random, on the GPU."""

    def rows(heads: int) -> torch.Tensor:
        return torch.randn(
            *(cell.batch, cell.length, heads, cell.head_dim), device="cuda", dtype=torch.bfloat16
        )

    q, k, v, do = rows(cell.heads_q), rows(cell.heads_kv), rows(cell.heads_kv), rows(cell.heads_q)
    out, lse = api.flash_attn_func(q, k, v, causal=cell.causal, return_lse=True)
    return Inputs(cell, q, k, v, out, lse, do)


def _problem(cell: Cell) -> Problem:
    return Problem(
        *(cell.batch, cell.length, cell.length, cell.heads_q, cell.heads_kv),
        *(cell.head_dim, cell.head_dim),
        dtype="bfloat16",
        causal=cell.causal,
        window_left=None,
        window_right=None,
        softcap=0.0,
        scale=default_scale(cell.head_dim),
    )


def tuned(plan: BasePlan, changes: Mapping[str, Any]) -> BasePlan:
    """The plan with changes to its tuning."""
    return replace(plan, tuning=replace(plan.tuning, **changes))


def _ours(x: Inputs, deterministic: bool = False) -> Call:
    options = (None, x.cell.causal, None, None, 0.0, deterministic)
    call = torch.ops.fa4.attention_backward
    return lambda: call(x.do, None, x.q, x.k, x.v, x.out, x.lse, *options)


def _tuned(x: Inputs, changes: Mapping[str, Any]) -> Call:
    problem = _problem(x.cell)
    plan = tuned(plan_backward(problem, ARCH), changes)
    plan.check()

    def call() -> tuple[torch.Tensor, ...]:
        grads = tuple(torch.empty_like(t) for t in (x.q, x.k, x.v))
        tensors = BackwardTensors(x.q, x.k, x.v, x.out, x.do, x.lse, None, *grads)
        backward(problem, plan, tensors)
        return grads

    return call


def _flash_attn_4(x: Inputs) -> Call:
    from flash_attn.cute.interface import _flash_attn_bwd

    arguments = (x.q, x.k, x.v, x.out, x.do, x.lse)
    return lambda: _flash_attn_bwd(*arguments, causal=x.cell.causal)


def _cudnn(x: Inputs) -> Call:
    leaves = tuple(t.transpose(1, 2).detach().requires_grad_() for t in (x.q, x.k, x.v))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = scaled_dot_product_attention(
            *leaves, is_causal=x.cell.causal, enable_gqa=x.cell.heads_q != x.cell.heads_kv
        )
    do = x.do.transpose(1, 2)

    def call() -> tuple[torch.Tensor, ...]:
        grads = torch.autograd.grad(out, leaves, do, retain_graph=True)
        return tuple(t.transpose(1, 2) for t in grads)

    return call


def time_cell(cell: Cell, variants: Mapping[str, Callable], rounds: int = 7) -> None:
    """One table: ours, our variants and the peers, interleaved; rel: error against ours."""
    x, device = draw_inputs(cell), CudaDevice()
    makers = {"ours": _ours, "flash-attn-4": _flash_attn_4, "cudnn": _cudnn, **variants}
    works, results = {}, {}
    for name, make in makers.items():
        try:
            call = make(x)
            results[name] = call()[:3]
            calls = max(3, int(20 / estimate_ms(device, call)))
            works[name] = Work(call, calls, calls)
        except Exception as error:  # a peer that cannot run here, a tuning that does not fit
            print(f"{cell} {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    works["gemm"] = Work(gemm(8192, "cuda"), 5, 5)
    samples = interleave(device, works, rounds, wait_between=False)
    for name, sample in samples.items():
        flops = 2 * 8192**3 if name == "gemm" else PASSES * cell.flops
        line = f"{cell!s:24} {name:40} {sample.ms:8.3f} ms {flops / sample.ms / 1e9:6.0f} TFLOPS"
        if name in results:
            line += f"  {samples['ours'].ms / sample.ms:.2f} of ours"
            line += "  rel " + " ".join(
                f"{e:.1e}" for e in _against(results["ours"], results[name])
            )
        print(line, flush=True)
    print(_kernels(_ours(x)), flush=True)


def _against(ours: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> list[float]:
    return [
        ((a.float() - b.float()).norm() / a.float().norm()).item()
        for a, b in zip(ours, other, strict=True)
    ]


def _kernels(call: Call, calls: int = 5) -> str:
    """Mean time of each kernel in a call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    times = {e.key: e.device_time_total / calls for e in profiler.key_averages()}
    return "   kernels: " + ", ".join(f"{key[:40]} {us:.0f} us" for key, us in times.items() if us)


# ---- compiling


def _compile_all(
    problems: list[Problem], tunings: list[Mapping[str, Any]], trials: list[Trial]
) -> None:
    """All kernels, by as many processes as there are cores."""
    plans = {plan_backward(p, ARCH) for p in problems}
    plans |= {tuned(plan, changes) for plan in set(plans) for changes in tunings}
    problems += [trial.problem() for trial in trials]
    plans |= {plan_backward(p, ARCH) for p in problems} | {plan_forward(p, ARCH) for p in problems}
    start = time.monotonic()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        messages = [m for m in pool.map(_compile, plans) if m]
    print("\n".join(messages))
    print(f"{len(plans)} kernels compiled in {time.monotonic() - start:.0f} s", flush=True)


def _compile(plan: BasePlan) -> str:
    """Compile into the cache; returns what went wrong."""
    try:
        if not compile.object_file(plan).exists():
            compile.compile_to(plan, compile.object_file(plan))
    except Exception as error:  # for example a tuning that does not fit
        return f"{plan.name}: {type(error).__name__}: {str(error)[:300]}"
    return ""


assert ops  # registers torch.ops.fa4
