"""`python -m bench fuzz`: random problems against the float32 reference on this GPU.

With --backward their gradients too, against float64. A problem is right, wrong, or skipped because
the reference has too little memory; further seeds take the place of those.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import processes
from bench.hopper.attempt import (
    RIGHT,
    SKIPPED,
    WRONG,
    Attention,
    Record,
    attempt,
    check_backward,
    check_forward,
)
from bench.hopper.backward_implementations import ARCH
from bench.hopper.files import environment
from bench.hopper.problems import Trial, draw
from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.plan_base import BasePlan
from fa4.profile.options import output_file, positive

REPORT_EVERY = 100  # problems
SHOWN = 20  # problems of an outcome that a file names


@dataclass(frozen=True)
class Search:
    """Seeds from `first` until `count` problems are compared, spread over `jobs` processes."""

    first: int
    count: int
    seconds: float | None = None
    jobs: int = 1
    head_dims: tuple[tuple[int, int], ...] = ()
    backward: bool = False

    @property
    def end(self) -> int:
        """No seed from here on is tried: if that many are skipped, the GPU is too small."""
        return self.first + 2 * self.count

    def trials(self, seeds: Iterable[int]) -> list[Trial]:
        """The problems of seeds."""
        return [draw(seed, self.head_dims) for seed in seeds]

    def plan(self, trial: Trial) -> BasePlan:
        """What is compiled for it; problems with equal plans of the backward share the forward."""
        return (plan_backward if self.backward else plan_forward)(trial.problem(), ARCH)

    def shares(self, trials: Sequence[Trial]) -> list[list[Trial]]:
        """One per process, with none compiling what another does; the largest are dealt first."""
        shares = [[] for _ in range(self.jobs)]
        plans: dict[BasePlan, list[Trial]] = {}
        for trial in trials:
            plans.setdefault(self.plan(trial), []).append(trial)
        for together in sorted(plans.values(), key=len, reverse=True):
            min(shares, key=len).extend(together)
        return [sorted(share, key=lambda trial: trial.seed) for share in shares if share]

    def replay(self, seed: int) -> str:
        """The command that repeats one problem."""
        dims = " ".join(f"{d}x{dv}" for d, dv in self.head_dims)
        chosen = f" --head-dims {dims}" if dims else ""
        backward = " --backward" if self.backward else ""
        return f"python -m bench fuzz{backward} --first {seed} --count 1{chosen}"


def main(argv: list[str]) -> int:
    """Search, print and save; 1 when a problem is wrong or fewer than asked for are compared."""
    search, file = parse(argv)
    if not torch.cuda.is_available():
        print("No CUDA device here: this command runs kernels on a GPU.")
        return 2
    begin = time.monotonic()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {search}", flush=True)
    found = list(shown(search, attempts(search)))
    report = summary(search, found, time.monotonic() - begin)
    if file:
        command = shlex.join(["python", "-m", "bench", "fuzz", *argv])
        file.write_text(json.dumps({**environment(), "command": command, **report}, indent=1))
    print(text(report))
    return 1 if report["wrong"] or report["left"] else 0


def parse(argv: list[str]) -> tuple[Search, Path | None]:
    """Options: the search, and the file for its summary; wrong ones end the program."""
    parser = argparse.ArgumentParser(prog="python -m bench fuzz", description=__doc__)
    parser.add_argument("--count", type=positive, default=2000, help="problems to compare")
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--seconds", type=float, help="start no new problem after this long")
    parser.add_argument(
        "--jobs", type=positive, default=1, help="processes: kernels compile in parallel"
    )
    parser.add_argument(
        "--head-dims", type=_dims, nargs="+", default=[], help="only these, e.g. 64 192x128"
    )
    parser.add_argument("--backward", action="store_true", help="gradients too")
    parser.add_argument("--json", type=output_file, help="file for the summary")
    options = parser.parse_args(argv)
    search = Search(
        options.first,
        options.count,
        options.seconds,
        options.jobs,
        tuple(options.head_dims),
        options.backward,
    )
    return search, options.json


def attempts(search: Search) -> Iterator[Record]:
    """Until enough are compared, the time is spent, or some were not tried."""
    begin, first, missing = time.monotonic(), search.first, search.count
    while missing and first < search.end:
        seeds = range(first, min(first + missing, search.end))
        rest = None
        if search.seconds is not None:
            rest = search.seconds - (time.monotonic() - begin)
        shares = search.shares(search.trials(seeds))
        work = partial(_work, search.backward, rest)
        tried = skipped = 0
        for record in processes.records(work, [(share,) for share in shares], rest):
            tried, skipped = tried + 1, skipped + (record.outcome == SKIPPED)
            yield record
        if tried < len(seeds):
            return
        first, missing = seeds.stop, skipped


def _work(
    backward: bool, seconds: float | None, trials: Sequence[Trial], put: Callable[[Record], None]
) -> None:
    """One process, on the current CUDA device."""
    from fa4 import flash_attn_func

    attention = partial(flash_attn_func, return_lse=True)
    for record in run(trials, attention, "cuda", backward=backward, seconds=seconds):
        put(record)


def run(
    trials: Iterable[Trial],
    attention: Attention,
    device: str,
    *,
    backward: bool = False,
    seconds: float | None = None,
) -> Iterator[Record]:
    """Try problems until the time is spent or the GPU is lost."""
    begin = time.monotonic()
    for trial in trials:
        if seconds is not None and time.monotonic() - begin >= seconds:
            return
        record = attempt(trial, check_backward if backward else check_forward, attention, device)
        yield record
        if record.lost:
            return


def shown(search: Search, found: Iterator[Record]) -> Iterator[Record]:
    """The same, printed: what is not right, and the progress."""
    begin, counts = time.monotonic(), Counter()
    for record in found:
        counts[record.outcome] += 1
        if record.outcome != RIGHT:
            print(line(search, record), flush=True)
        if counts.total() % REPORT_EVERY == 0:
            print(f"{dict(counts)} of {search.count}, {time.monotonic() - begin:.0f} s", flush=True)
        yield record


def line(search: Search, record: Record) -> str:
    """What is not right."""
    what = "FAIL" if record.outcome == WRONG else "SKIPPED for memory"
    again = search.replay(record.seed)
    return f"{what} seed {record.seed}: {record.problem}: {record.reason} | {again}"


def summary(search: Search, found: Sequence[Record], seconds: float) -> dict[str, Any]:
    """What is saved: counts, the first that were not right, and the largest share of each limit."""
    counts = Counter(record.outcome for record in found)
    seeds = [record.seed for record in found]
    left = search.count - counts[RIGHT] - counts[WRONG]
    return {
        "pass": "backward" if search.backward else "forward",
        "count": search.count,
        "seeds": [min(seeds), max(seeds)] if seeds else None,
        "kernels": len({search.plan(draw(seed, search.head_dims)) for seed in seeds}),
        "right": counts[RIGHT],
        "wrong": counts[WRONG],
        "skipped_for_memory": counts[SKIPPED],
        "left": left,
        "stopped": _why_left(search, found, seconds) if left else None,
        "seconds": round(seconds, 1),
        "worst_share_of_limit": _worst(found),
        "failures": [line(search, r) for r in found if r.outcome == WRONG][:SHOWN],
        "skipped": [line(search, r) for r in found if r.outcome == SKIPPED][:SHOWN],
    }


def _worst(found: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """The largest error over its limit, by result; above 1 is wrong, None is no number."""
    worst: dict[str, dict[str, Any]] = {}
    largest: dict[str, float] = {}
    for record in found:
        for name, share in record.shares.items():
            if share > largest.get(name, -1.0):
                largest[name] = share
                shown_share = None if math.isinf(share) else round(share, 4)
                worst[name] = {"share": shown_share, "seed": record.seed}
    return worst


def _why_left(search: Search, found: Sequence[Record], seconds: float) -> str:
    lost = [record.seed for record in found if record.lost]
    if lost:
        return f"the GPU was lost in seed {lost[0]}"
    if search.seconds is not None and seconds >= search.seconds:
        return "the time is spent"
    if len(found) == search.end - search.first:
        return "too many are skipped for memory: use fewer --jobs"
    return "a process ended or hung"


def text(report: dict[str, Any]) -> str:
    """The last lines of a search."""
    first, last = report["seeds"] or (None, None)
    worst = report["worst_share_of_limit"].items()
    lines = [
        *report["failures"],
        f"{report['pass']}, seeds {first} to {last}, {report['kernels']} kernels, "
        f"{report['seconds']:.0f} s: {report['right']} right, {report['wrong']} wrong, "
        f"{report['skipped_for_memory']} skipped for memory",
        "largest errors over their limits: "
        + ", ".join(f"{name} {row['share']} (seed {row['seed']})" for name, row in worst),
    ]
    if report["left"]:
        lines.append(f"{report['left']} problems left: {report['stopped']}")
    return "\n".join(lines)


def _dims(word: str) -> tuple[int, int]:
    """Parse `64` or `192x128`."""
    head_dim, _, head_dim_v = word.partition("x")
    return positive(head_dim), positive(head_dim_v or head_dim)
