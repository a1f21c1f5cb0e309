"""`python -m bench mutants`: all mutants of the forward kernels, as JSON and Markdown."""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context

import torch

from bench.mutants.cases import CASES
from bench.mutants.experiment import SCHEDULES, Experiment, experiment
from bench.mutants.explanations import explanation
from bench.mutants.marks import separate_cache
from bench.mutants.report import Row, markdown, noticed
from bench.progress import progress
from bench.results import FOLDER, save
from fa4.profile.options import positive

REQUIRED = 0.95  # share of removals that must be noticed

_stack = ExitStack()
_known: dict[str, Experiment] = {}


def _start(folder: str) -> None:
    """Prepares a process."""
    torch.set_num_threads(1)
    _stack.enter_context(separate_cache(folder))


def _experiment(kernel: str) -> Experiment:
    if kernel not in _known:
        _known[kernel] = experiment(kernel)
    return _known[kernel]


def _portable(text: str) -> str:
    """Without where this tree lies."""
    return text.replace(f"{FOLDER.parents[1]}/", "")


def _count(kernel: str) -> int:
    return len(_experiment(kernel).mutants())


def judge(task: tuple[str, int]) -> Row:
    """The verdict on mutant number `task[1]` of a kernel.

    One with an explanation is not tried under the schedules that take long and show nothing.
    """
    kernel = _experiment(task[0])
    mutant = kernel.mutants()[task[1]]
    why = explanation(task[0], mutant)
    verdict = kernel.checked(mutant) if why else kernel.verdict(mutant)
    site = mutant.site
    return Row(
        *(task[0], site.kind, mutant.change, str(site), verdict.by, _portable(verdict.how)),
        "" if verdict.by else why,
    )


def main(arguments: list[str]) -> int:
    """Judges every mutant; 1 when too many survive, or one of them without an explanation."""
    parser = argparse.ArgumentParser(prog="python -m bench mutants", description=__doc__)
    parser.add_argument("--jobs", type=positive, default=1, help="processes (default: 1)")
    parser.add_argument("--kernel", choices=CASES, action="append", help="default: all")
    options = parser.parse_args(arguments)
    kernels = options.kernel or list(CASES)
    with tempfile.TemporaryDirectory(prefix="fa4-mutants-") as folder:
        pool = ProcessPoolExecutor(
            options.jobs, get_context("spawn"), initializer=partial(_start, folder)
        )
        with pool:
            counts = [pool.submit(_count, kernel).result() for kernel in kernels]
            tasks = [
                (kernel, i) for kernel, n in zip(kernels, counts, strict=True) for i in range(n)
            ]
            results = [pool.submit(judge, task) for task in tasks]
            rows = [results[i].result() for i in progress(range(len(tasks)), "mutant")]
    text = markdown(rows, len(SCHEDULES))
    print(text)
    if kernels == list(CASES):
        note = "verdicts of the emulator on changed PTX; nothing ran on a GPU"
        save("mutants", [row.as_dict() for row in rows], "not used", note)
        (FOLDER / "mutants.md").write_text(text)
    return _exit_code(rows)


def _exit_code(rows: list[Row]) -> int:
    unexplained = [row.site for row in rows if not row.by and not row.why]
    for site in unexplained:
        print(f"survives without an explanation: {site}", file=sys.stderr)
    removals = [row for row in rows if row.change == "removed"]
    too_few = any(
        noticed([row for row in removals if row.kernel == kernel]) < REQUIRED
        for kernel in {row.kernel for row in removals}
    )
    return int(bool(unexplained) or too_few)
