"""Runs a mutant: under the checker, and under schedules that delay what they may."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from unittest import mock

import torch

from bench.mutants.cases import CASES, Case, Tensors
from bench.mutants.marks import marked_sites
from fa4 import emulator, launch
from fa4.emulator.checker.findings import CheckError
from fa4.emulator.engines import Engines
from fa4.emulator.errors import EmulatorError
from fa4.emulator.machine import Cluster
from fa4.emulator.mutants import Site, sites, weakened, without
from fa4.emulator.program import Program

CORE_LAST = "core last"  # a schedule beside those of the emulator, see tensor_core_last
SCHEDULES = [
    ("early", 0),
    ("late", 0),
    (CORE_LAST, 0),
    *[(kind, seed) for seed in range(8) for kind in ("priority", "random")],
    *[("priority", seed) for seed in range(8, 13)],
]


@dataclass
class Outcome:
    """What one run of a kernel gave: its results, its PTX before rewriting, the remarks."""

    results: Tensors
    ptx: str
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """How a mutant was noticed, or "" in `by`.

    `by`: "checker" (a finding), "remark" (of the checker), "emulator" (the run cannot go on: a
    deadlock, or what no schedule makes legal), "schedule" (another one fails).
    """

    by: str
    how: str = ""


@dataclass(frozen=True)
class Mutant:
    """A change to a site of a kernel: "removed" or "weakened"."""

    site: Site
    change: str

    def of(self, ptx: str) -> str:
        """The PTX with the change, where it has the site."""
        for site in sites(ptx):
            if site.same_place(self.site):
                changed = without(ptx, site) if self.change == "removed" else weakened(ptx, site)
                return changed or ptx
        return ptx

    def __str__(self) -> str:
        return f"{self.change}: {self.site}"


@dataclass(frozen=True)
class Experiment:
    """Cases that share their sites and wrap every edge several times, and the right answers."""

    cases: tuple[Case, ...]
    answers: tuple[Outcome, ...]

    def mutants(self) -> list[Mutant]:
        """All mutants of the first case's kernel."""
        ptx = self.answers[0].ptx
        return [
            Mutant(site, change)
            for site in sites(ptx)
            for change in ("removed", "weakened")
            if change == "removed" or weakened(ptx, site) is not None
        ]

    def checked(self, mutant: Mutant) -> Verdict:
        """What one run of each case under the checker says."""
        for case, answer in zip(self.cases, self.answers, strict=True):
            try:
                outcome = run(case, ("early", 0), mutant, check=True)
            except CheckError as error:
                first = next(iter(error.findings.values()))[0]
                return Verdict("checker", f"{first.kind}: {first.message}")
            except EmulatorError as error:
                found = "before that:" in error.message
                return Verdict("checker" if found else "emulator", type(error).__name__)
            if new := [r for r in outcome.remarks if r not in answer.remarks]:
                return Verdict("remark", new[0])
            if not _equal(outcome, answer):
                return Verdict("schedule", "early 0: wrong result")
        return Verdict("")

    def scheduled(self, mutant: Mutant) -> Verdict:
        """The first schedule that shows something."""
        for schedule in SCHEDULES:
            for case, answer in zip(self.cases, self.answers, strict=True):
                name = f"{schedule[0]} {schedule[1]}"
                try:
                    outcome = run(case, schedule, mutant)
                except EmulatorError as error:
                    return Verdict("schedule", f"{name}: {type(error).__name__}")
                if not _equal(outcome, answer):
                    return Verdict("schedule", f"{name}: wrong result")
        return Verdict("")

    def verdict(self, mutant: Mutant) -> Verdict:
        """The checker's, or that of the schedules where it has none."""
        verdict = self.checked(mutant)
        return verdict if verdict.by else self.scheduled(mutant)


def _equal(outcome: Outcome, answer: Outcome) -> bool:
    return all(a.equal(b) for a, b in zip(outcome.results, answer.results, strict=True))


def experiment(kernel: str) -> Experiment:
    """The undisturbed runs of a kernel's cases. Raises CheckError if the kernel has findings."""
    cases = tuple(CASES[kernel])
    with marked_sites():
        runs = tuple(run(case, ("early", 0), None, check=True) for case in cases)
    return Experiment(cases, runs)


def run(case: Case, order: tuple[str, int], mutant: Mutant | None, check: bool = False) -> Outcome:
    """Attention on one SM by the kernel, or by a mutant in its place."""
    seen, original, (schedule, seed) = [], Program.from_ptx, order
    q, k, v = case.inputs
    out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan).mT.contiguous()

    def rewritten(ptx: str, entry: str) -> Program:
        seen.append(ptx)
        return original(ptx, entry) if mutant is None else Program(mutant.of(ptx), entry)

    with (
        mock.patch.object(Program, "from_ptx", staticmethod(rewritten)),
        nothing_after_exit(),
        tensor_core_last() if schedule == CORE_LAST else nullcontext(),
        emulator.session(
            schedule="late" if schedule == CORE_LAST else schedule,
            seed=seed,
            arch=case.plan.arch,
            num_sms=1,
            check=check,
        ) as emulated,
    ):
        launch._emulated_counter().zero_()  # a broken kernel may leave it at any number
        strides = tuple(tensor.stride() for tensor in (q, k, v, out))
        launch.prepare(case.problem, case.plan, strides, q.device, True)(q, k, v, out, lse)
    return Outcome((out, lse), seen[-1], emulated.launches[-1].stats.remarks)


@contextmanager
def nothing_after_exit() -> Iterator[None]:
    """An effect still in flight when all warps have left is an EmulatorError.

    It would reach shared memory that may belong to another CTA by then. A store that has read its
    source may go on: it touches global memory alone, and the end of the kernel awaits it.
    """
    original = Cluster.finish

    def finish(cluster: Cluster) -> None:
        for queue in cluster.engines.queues.values():
            if queue[0].origin:  # a store's second half has none
                raise EmulatorError(f"in flight after the last warp has left: {queue[0].origin}")
        original(cluster)

    with mock.patch.object(Cluster, "finish", finish):
        yield


@contextmanager
def tensor_core_last() -> Iterator[None]:
    """Under `late` the tensor core moves only when nothing else is in flight."""
    original = Engines.step

    def step(engines: Engines, key: Hashable | None = None) -> bool:
        others = [k for k in engines.queues if k[0] != "tensor core"]
        if key is None and others:
            key = min(others, key=lambda k: engines.queues[k][0].order)
        return original(engines, key)

    with mock.patch.object(Engines, "step", step):
        yield
