"""The rungs: each takes a kernel one step further from "it compiles" to "it runs on silicon".

A rung gets a `Subject` and an `Effort` and says how often it ran something and what failed first.
A kernel that fails a rung does not climb further.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch

import fa4
from fa4 import emulator
from fa4.compile import artifacts
from fa4.emulator.checker.checker import UNORDERED_SUMS
from fa4.on_hopper.modes import MODES
from fa4.on_hopper.sessions import gpu_lost, no_hopper
from fa4.plan_base import CHIPS
from fa4.profile.elf import read_resources
from fa4.profile.report import kernel_resources, unmet_registers
from fa4.variants import Variant
from fa4.verify.subjects import Subject, Tensors, subject_of

NUM_SMS = 2  # each CTA of a persistent kernel gets several tiles
RESIDENT = 4  # CTAs side by side in hostile schedules: some wait for others
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


def compiled(subject: Subject, _effort: Effort) -> Outcome:
    """No spills, no stack, a register file that all warps fit in, budgets honoured."""
    plan = subject.variant.plan
    made = artifacts(plan)
    kernels, main = read_resources(made.cubin), kernel_resources(made)
    faults = []
    if len(kernels) != subject.kernels:
        faults.append(f"{len(kernels)} kernels instead of {subject.kernels}")
    for found in kernels:
        wants = {
            "bytes of stack": found.stack,
            "spilling instructions": found.local_loads + found.local_stores,
        }
        faults += [f"{count} {what} in {found.kernel}" for what, count in wants.items() if count]
    excess = main.registers * plan.threads - CHIPS[plan.arch].registers
    if excess > 0:
        faults.append(f"{excess} registers too many")
    faults += [
        f"{role} does not get {n} registers" for role, n in unmet_registers(plan, made).items()
    ]
    return Outcome(len(kernels), "; ".join(faults))


def emulated(subject: Subject, _effort: Effort) -> Outcome:
    """Equals float32 within the error rule of `fa4.reference`."""
    with _session(subject):
        return Outcome(1, subject.wrong(subject.run("cpu")))


def hostile_schedules(subject: Subject, effort: Effort) -> Outcome:
    """Asynchronous effects and warps as late as can be, and at random: the same bits as early."""
    with _session(subject):
        expected = subject.run("cpu")
    plans = [("late", 0)]
    plans += [(kind, seed) for kind in ("random", "priority") for seed in range(effort.schedules)]
    for number, (schedule, seed) in enumerate(plans, 1):
        with _session(subject, schedule=schedule, seed=seed, resident=RESIDENT):
            found = subject.run("cpu")
        if not same_bits(found, expected):
            return Outcome(number, f"schedule {schedule!r} seed {seed}: other bits than early")
    return Outcome(len(plans))


def checked(subject: Subject, _effort: Effort) -> Outcome:
    """No race, no missing fence or wait, nothing read that nobody wrote.

    Of a deterministic kernel also no sum whose order is left open.
    """
    with _session(subject, check=True) as here:
        wrong = subject.wrong(subject.run("cpu"))
    if not wrong and subject.variant.deterministic:
        remarks = (r for launch in here.launches for r in launch.stats.remarks)
        wrong = next((remark for remark in remarks if UNORDERED_SUMS in remark), "")
    return Outcome(1, wrong)


def on_hopper(subject: Subject, effort: Effort) -> Outcome:
    """On this machine's Hopper GPU: sm_90a as it is, sm_100a with tensor memory in software.

    Every launch equals float32 within the error rule and has the bits of the first one.
    """
    native, names = subject.variant.arch == "sm_90a", list(MODES)
    results: list[Tensors] = []

    def once(number: int) -> str:
        mode = "" if native else names[number % len(names)]
        with nullcontext() if native else fa4.on_hopper.Session(MODES[mode], seed=number):
            results.append(subject.run("cuda"))
        wrong = subject.wrong(results[-1])
        if not wrong and not same_bits(results[-1], results[0]):
            wrong = "other bits than the first launch"
        return f"mode {mode}: {wrong}" if wrong and mode else wrong

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
    return no_hopper() if rung == ON_HOPPER else ""


def climb(variant: Variant, rungs: tuple[str, ...], effort: Effort) -> dict[str, Outcome]:
    """The outcome of each rung up to the first that fails."""
    subject, outcomes = subject_of(variant), {}
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


def same_bits(some: Tensors, others: Tensors) -> bool:
    """Whether two results are equal bit by bit."""

    def bits(t: torch.Tensor) -> torch.Tensor:
        return t.contiguous().view(torch.uint8)

    return all(torch.equal(bits(a), bits(b)) for a, b in zip(some, others, strict=True))


def _repeated(count: int, once: Callable[[int], str]) -> Outcome:
    for number in range(count):
        failure = once(number)
        if failure:
            return Outcome(number + 1, failure)
    return Outcome(count)
