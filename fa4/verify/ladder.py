"""The rungs: each takes a kernel one step further from "it compiles" to "it runs on silicon".

A rung gets a `Subject` and an `Effort` and says how often it ran something and what failed first.
A kernel that fails a rung does not climb further.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

import fa4
from fa4 import emulator
from fa4.compile import artifacts
from fa4.emulator.patching import environment
from fa4.on_hopper.modes import MODES
from fa4.on_hopper.sessions import CAPABILITY, gpu_lost
from fa4.plan_base import CHIPS
from fa4.problem import Problem
from fa4.profile.elf import read_resources
from fa4.profile.report import unmet_registers
from fa4.reference import compare
from fa4.variants import Variant

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Result = tuple[torch.Tensor, torch.Tensor]

ROWS, KEYS, HEADS, BATCH = 300, 200, (2, 1), 2
NUM_SMS = 2  # each CTA gets several tiles
ON_HOPPER = "on Hopper silicon"


@dataclass(frozen=True)
class Effort:
    """How often each rung runs its problem."""

    schedules: int = 4  # seeds of each kind of random schedule
    launches: int = 8  # on a GPU; of sm_100a in the modes in turn, each with its own slow warps


@dataclass(frozen=True)
class Outcome:
    """What a rung did with a kernel; `failure` is empty when all of it was right.

    lost: the process cannot use its GPU after this failure, or is gone itself.
    """

    runs: int
    failure: str = ""
    lost: bool = False


@dataclass(frozen=True)
class Subject:
    """A kernel variant and the problem that it is run on."""

    variant: Variant

    @cached_property
    def problem(self) -> Problem:
        """Several tiles per CTA, an odd number of rows, two query heads on one of K and V."""
        return self.variant.problem(
            batch=BATCH if self.variant.keys <= KEYS else 1,  # long ones take long to emulate
            seqlen_q=ROWS,
            seqlen_k=max(KEYS, self.variant.keys),
            heads_q=HEADS[0],
            heads_kv=HEADS[1],
        )

    def inputs(self, device: str) -> Tensors:
        """q, k, v: random, the same everywhere."""
        p, generator = self.problem, torch.Generator().manual_seed(2911)
        shapes = (
            (p.batch, p.seqlen_q, p.heads_q, p.head_dim),
            (p.batch, p.seqlen_k, p.heads_kv, p.head_dim),
            (p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v),
        )
        dtype = getattr(torch, p.dtype)
        q, k, v = (torch.randn(s, generator=generator).to(dtype).to(device) for s in shapes)
        return q, k, v

    def attend(self, device: str) -> Result:
        """O and LSE as the kernel computes them, wherever the tensors and sessions send it."""
        p = self.problem
        with environment("FA4_EMULATE_ARCH", self.variant.arch):
            return fa4.flash_attn_func(
                *self.inputs(device),
                softmax_scale=p.scale,
                window_size=(p.window_left, p.window_right),
                softcap=p.softcap,
                return_lse=True,
            )

    def wrong(self, result: Result) -> str:
        """How the result breaks the error rule; empty if it does not."""
        agreement = compare(self.problem, self.inputs(result[0].device.type), *result)
        return "" if agreement.ok else str(agreement)


def compiled(subject: Subject, _effort: Effort) -> Outcome:
    """No spills, no stack, a register file that all warps fit in, budgets honoured."""
    plan = subject.variant.plan
    made = artifacts(plan)
    (found,) = read_resources(made.cubin)
    wants = {
        "bytes of stack": found.stack,
        "spilling instructions": found.local_loads + found.local_stores,
        "registers too many": max(0, found.registers * plan.threads - CHIPS[plan.arch].registers),
    }
    faults = [f"{count} {what}" for what, count in wants.items() if count]
    faults += [
        f"{role} does not get {n} registers" for role, n in unmet_registers(plan, made).items()
    ]
    return Outcome(1, "; ".join(faults))


def emulated(subject: Subject, _effort: Effort) -> Outcome:
    """Equals float32 within the error rule of `fa4.reference`."""
    with _session(subject):
        return Outcome(1, subject.wrong(subject.attend("cpu")))


def hostile_schedules(subject: Subject, effort: Effort) -> Outcome:
    """Asynchronous effects and warps as late as can be, and at random: the same bits as early."""
    with _session(subject):
        expected = subject.attend("cpu")
    plans = [("late", 0)]
    plans += [(kind, seed) for kind in ("random", "priority") for seed in range(effort.schedules)]
    for number, (schedule, seed) in enumerate(plans, 1):
        with _session(subject, schedule=schedule, seed=seed):
            found = subject.attend("cpu")
        if not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
            return Outcome(number, f"schedule {schedule!r} seed {seed}: other bits than early")
    return Outcome(len(plans))


def checked(subject: Subject, _effort: Effort) -> Outcome:
    """No race, no missing fence or wait, nothing read that nobody wrote."""
    with _session(subject, check=True):
        return Outcome(1, subject.wrong(subject.attend("cpu")))


def on_hopper(subject: Subject, effort: Effort) -> Outcome:
    """On this machine's Hopper GPU: sm_90a as it is, sm_100a with tensor memory in software."""
    if subject.variant.arch == "sm_90a":
        return _repeated(effort.launches, lambda _: subject.wrong(subject.attend("cuda")))
    names = list(MODES)

    def once(number: int) -> str:
        mode = names[number % len(names)]
        with fa4.on_hopper.Session(MODES[mode], seed=number):
            wrong = subject.wrong(subject.attend("cuda"))
        return f"mode {mode}: {wrong}" if wrong else ""

    return _repeated(effort.launches, once)


RUNGS: dict[str, Callable[[Subject, Effort], Outcome]] = {
    "compiled": compiled,
    "emulated": emulated,
    "hostile schedules": hostile_schedules,
    "checked": checked,
    ON_HOPPER: on_hopper,
}


def missing(rung: str) -> str:
    """Why this machine cannot climb a rung; empty if it can."""
    if rung == ON_HOPPER:
        if not torch.cuda.is_available():
            return "no GPU"
        capability = torch.cuda.get_device_capability()
        if capability != CAPABILITY:
            major, minor = capability
            return f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}, not 9.0"
    return ""


def climb(variant: Variant, rungs: tuple[str, ...], effort: Effort) -> dict[str, Outcome]:
    """The outcome of each rung up to the first that fails."""
    subject, outcomes = Subject(variant), {}
    for rung in rungs:
        try:
            outcomes[rung] = RUNGS[rung](subject, effort)
        except Exception as error:  # whatever it is, it is the finding
            lost = rung == ON_HOPPER and gpu_lost(error)  # no other rung has to do with a GPU
            outcomes[rung] = Outcome(1, f"{type(error).__name__}: {error}", lost)
        if outcomes[rung].failure:
            break
    return outcomes


def _session(subject: Subject, **options: object) -> emulator.Session:
    return emulator.session(arch=subject.variant.arch, num_sms=NUM_SMS, **options)


def _repeated(count: int, once: Callable[[int], str]) -> Outcome:
    for number in range(count):
        failure = once(number)
        if failure:
            return Outcome(number + 1, failure)
    return Outcome(count)
