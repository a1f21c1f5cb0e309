"""`fa4 demo`: compile the forward kernel, run it on one problem, compare with float32."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import torch

from fa4 import api, reference
from fa4.pipeline import diagram
from fa4.plan import plan_forward
from fa4.plan_base import BasePlan
from fa4.problem import default_scale, example_problem

PROBLEM = example_problem(
    128, causal=True, seqlen_q=512, seqlen_k=512, heads_q=4, heads_kv=2, scale=default_scale(128)
)


@dataclass(frozen=True)
class Run:
    """Result of one call, and warp instructions per role where the emulator counted them."""

    out: torch.Tensor
    lse: torch.Tensor
    seconds: float
    instructions: dict[str, int]


def demo_plan(arch: str) -> BasePlan:
    """The plan of the demo's kernel for an architecture."""
    return plan_forward(PROBLEM, arch)


def demo_main(argv: list[str]) -> int:
    """Run the demo; returns 1 if the result breaks the error rule of `fa4.reference`, 2 if
    FA4_EMULATE_ARCH names what is not emulated."""
    parser = argparse.ArgumentParser(prog="fa4 demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    arguments = parser.parse_args(argv)
    start = time.perf_counter()
    inputs = _inputs(arguments.seed)
    gpu = native_gpu()
    try:
        arch = demo_arch(gpu)
    except ValueError as error:
        print(f"fa4 demo: {error}", file=sys.stderr)
        return 2
    print(
        "fa4 demo: causal GQA, batch 1, 512 x 512, heads 4/2, head dim 128, bfloat16, random data"
    )
    if gpu is None:
        print(f"no Hopper or Blackwell GPU: the compiled {arch} kernel runs in the emulator\n")
        run = run_emulated(inputs)
    else:
        print(f"the {arch} kernel runs natively on {torch.cuda.get_device_name(gpu)}\n")
        run = run_native(inputs, gpu)
    print(diagram.render(demo_plan(arch)))
    agreement = reference.compare(PROBLEM, inputs, run.out, run.lse)
    print(_report(agreement, run, time.perf_counter() - start))
    return 0 if agreement.ok else 1


def run_emulated(inputs: tuple[torch.Tensor, ...]) -> Run:
    """`flash_attn_func` on CPU tensors, with the emulator's counts."""
    from fa4 import emulator

    start = time.perf_counter()
    with emulator.session(arch=api.emulated_arch()) as emulated:
        out, lse = api.flash_attn_func(*inputs, causal=True, return_lse=True)
    seconds = time.perf_counter() - start
    return Run(out, lse, seconds, emulated.launches[-1].stats.by_role)


def run_native(inputs: tuple[torch.Tensor, ...], gpu: torch.device) -> Run:
    """`flash_attn_func` on `gpu`; results return to the CPU."""
    start = time.perf_counter()
    out, lse = api.flash_attn_func(*(t.to(gpu) for t in inputs), causal=True, return_lse=True)
    out, lse = out.cpu(), lse.cpu()
    return Run(out, lse, time.perf_counter() - start, {})


def _inputs(seed: int) -> tuple[torch.Tensor, ...]:
    p, generator = PROBLEM, torch.Generator().manual_seed(seed)
    shapes = (
        (p.batch, p.seqlen_q, p.heads_q, p.head_dim),
        (p.batch, p.seqlen_k, p.heads_kv, p.head_dim),
        (p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v),
    )
    return tuple(torch.randn(shape, generator=generator).bfloat16() for shape in shapes)


def demo_arch(gpu: torch.device | None) -> str:
    """What the demo's kernel is compiled for: the GPU, or the emulator without one."""
    return api.emulated_arch() if gpu is None else api.native_arch(gpu)


def native_gpu() -> torch.device | None:
    """The first GPU that has a kernel."""
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        try:
            api.native_arch(device)
        except NotImplementedError:
            continue
        return device
    return None


def _report(agreement: reference.Agreement, run: Run, total_seconds: float) -> str:
    lines = ["", f"{'error against float32':24}{'fa4':>10}{'torch bf16':>12}{'limit':>10}"]
    lines.append(
        f"{'  O, largest':24}{agreement.out_error:10.2e}{agreement.torch_error:12.2e}"
        f"{agreement.out_limit:10.2e}"
    )
    lines.append(
        f"{'  LSE, largest':24}{agreement.lse_error:10.2e}{'':12}{reference.LSE_TOLERANCE:10.2e}"
    )
    if run.instructions:
        lines += ["", "warp instructions per role (emulated)"]
        lines += [f"  {role:22}{count:10,}" for role, count in sorted(run.instructions.items())]
        lines.append(f"  {'all':22}{sum(run.instructions.values()):10,}")
    lines.append(f"\ncompile and run {run.seconds:.1f} s, everything {total_seconds:.1f} s")
    lines.append("agrees with float32" if agreement.ok else "DISAGREES with float32")
    return "\n".join(lines)
