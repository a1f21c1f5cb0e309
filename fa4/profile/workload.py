"""One forward launch to be profiled: a problem, its plan and random tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from fa4 import api, launch
from fa4.plan import plan_forward
from fa4.plan_base import BasePlan
from fa4.problem import Problem

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Workload:
    """tensors: q, k, v (seeded, standard normal), out and lse, on one device."""

    problem: Problem
    plan: BasePlan
    tensors: tuple[torch.Tensor, ...]

    @property
    def device(self) -> torch.device:
        """Where it runs: a CUDA device, or the CPU for the emulator."""
        return self.tensors[0].device

    @property
    def title(self) -> str:
        """Names the kernel, the architecture and the sizes."""
        p = self.problem
        return (
            f"{self.plan.name} for {self.plan.arch}, batch {p.batch}, {p.seqlen_q} x "
            f"{p.seqlen_k}, heads {p.heads_q}/{p.heads_kv}"
        )

    def launch(self) -> None:
        """Once, without waiting for a GPU. On the CPU: inside of an emulator session."""
        self._prepared(*self.tensors)

    @cached_property
    def _prepared(self) -> launch.Launch:
        strides = tuple(tensor.stride() for tensor in self.tensors[:4])
        return launch.prepare(self.problem, self.plan, strides, self.device, with_lse=True)

    def with_plan(self, **changes: object) -> Workload:
        """The same launch under a changed plan."""
        return replace(self, plan=replace(self.plan, **changes))


def this_gpu() -> tuple[torch.device, str]:
    """The current GPU and its architecture. NotImplementedError where no kernel runs natively."""
    if not torch.cuda.is_available():
        raise NotImplementedError(
            "this needs an NVIDIA GPU, and torch sees none here; `fa4 profile` without --gpu and "
            "--ncu runs in the emulator. `fa4 doctor` says what is missing."
        )
    device = torch.device("cuda", torch.cuda.current_device())
    return device, api.native_arch(device)


def workload(problem: Problem, arch: str, device: torch.device) -> Workload:
    """Random tensors for a problem. Raises ValueError for an architecture without a kernel."""
    p, generator = problem, torch.Generator(device).manual_seed(0)
    options = {"dtype": DTYPES[p.dtype], "device": device}
    shapes = (
        (p.batch, p.seqlen_q, p.heads_q, p.head_dim),
        (p.batch, p.seqlen_k, p.heads_kv, p.head_dim),
        (p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v),
    )
    q, k, v = (torch.randn(shape, generator=generator, **options) for shape in shapes)
    out = torch.empty((p.batch, p.seqlen_q, p.heads_q, p.head_dim_v), **options)
    lse = torch.empty((p.batch, p.heads_q, p.seqlen_q), dtype=torch.float32, device=device)
    return Workload(p, plan_forward(p, arch), (q, k, v, out, lse))
