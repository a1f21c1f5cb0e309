"""`python -m bench fuzz`: random problems against the float32 reference on this GPU."""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context

import torch

from bench.hopper.problems import Trial, draw
from fa4.reference import compare

REPORT_EVERY = 100  # problems of one process

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Result:
    """What a search found."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    left: int = 0
    stopped: str = ""  # why problems are left

    def __add__(self, other: Result) -> Result:
        return Result(
            self.tried + other.tried,
            self.failures + other.failures,
            self.left + other.left,
            self.stopped or other.stopped,
        )


@dataclass(frozen=True)
class Search:
    """Seeds `first ... first + count - 1`, spread over `jobs` processes by compiled kernel."""

    first: int
    count: int
    seconds: float | None = None
    jobs: int = 1
    head_dims: tuple[tuple[int, int], ...] = ()

    def trials(self, job: int) -> Iterable[Trial]:
        """Those of one process; each kernel belongs to one, so that none is compiled twice."""
        for seed in range(self.first, self.first + self.count):
            trial = draw(seed, self.head_dims)
            if zlib.crc32(repr(trial.kernel).encode()) % self.jobs == job:
                yield trial

    def replay(self, seed: int) -> str:
        """The command that repeats one problem."""
        dims = " ".join(f"{d}x{dv}" for d, dv in self.head_dims)
        chosen = f" --head-dims {dims}" if dims else ""
        return f"python -m bench fuzz --seed {seed} --count 1{chosen}"


def main(argv: list[str]) -> int:
    """Search; 1 when a problem failed or is left."""
    search = parse(argv)
    if not torch.cuda.is_available():
        print("No CUDA device here: this command runs kernels on a GPU.")
        return 2
    begin = time.monotonic()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {search}", flush=True)
    if search.jobs == 1:
        result = run_job(search, 0)
    else:
        with ProcessPoolExecutor(search.jobs, mp_context=get_context("spawn")) as pool:
            result = sum(pool.map(partial(run_job, search), range(search.jobs)), Result())
    print(text(search, result, time.monotonic() - begin))
    return 1 if result.failures or result.left else 0


def parse(argv: list[str]) -> Search:
    """Options; wrong ones end the program."""
    parser = argparse.ArgumentParser(prog="python -m bench fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="problems")
    parser.add_argument("--seed", type=int, default=0, help="of the first problem")
    parser.add_argument("--seconds", type=float, help="start no new problem after this long")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes: kernels compile in parallel"
    )
    parser.add_argument(
        "--head-dims", type=_dims, nargs="+", default=[], help="only these, e.g. 64 192x128"
    )
    options = parser.parse_args(argv)
    return Search(
        options.seed, options.count, options.seconds, options.jobs, tuple(options.head_dims)
    )


def run_job(search: Search, job: int) -> Result:
    """The search's part of one process, on the current CUDA device."""
    from fa4 import flash_attn_func

    attention = partial(flash_attn_func, return_lse=True)
    return run(search, list(search.trials(job)), attention, "cuda")


def run(search: Search, trials: Sequence[Trial], attention: Attention, device: str) -> Result:
    """Try the trials until the time is spent or the GPU is lost; prints failures and progress."""
    result, begin = Result(), time.monotonic()
    for index, trial in enumerate(trials):
        if search.seconds is not None and time.monotonic() - begin >= search.seconds:
            return replace(result, left=len(trials) - index, stopped="the time is spent")
        reason = failure(trial, attention, device)
        result.tried += 1
        if reason:
            line = f"FAIL seed {trial.seed}: {trial}: {reason} | {search.replay(trial.seed)}"
            result.failures.append(line)
            print(line, flush=True)
            if device == "cuda" and not _alive():
                left = len(trials) - index - 1
                return replace(result, left=left, stopped=f"the GPU was lost in seed {trial.seed}")
        if result.tried % REPORT_EVERY == 0:
            seconds = time.monotonic() - begin
            print(f"{result.tried}/{len(trials)}, {seconds:.0f} s, seed {trial.seed}", flush=True)
    return result


def failure(trial: Trial, attention: Attention, device: str) -> str:
    """Why the trial's result is wrong; empty if it is right."""
    try:
        problem, inputs = trial.problem(), trial.inputs(device)
        q, _, v = inputs
        poison_free_memory((*q.shape[:3], v.shape[3]), q.dtype, device)
        poison_free_memory((q.shape[0], q.shape[2], q.shape[1]), torch.float32, device)
        out, lse = attention(*inputs, **trial.options)
        agreement = compare(problem, inputs, out, lse)
    except Exception as error:  # whatever it is, it is the finding
        return " ".join(f"{type(error).__name__}: {error}".split())
    return "" if agreement.ok else str(agreement)


def text(search: Search, result: Result, seconds: float) -> str:
    """The last lines of a search."""
    last = search.first + search.count - 1
    lines = [
        *result.failures,
        f"{result.tried} problems (seeds {search.first} to {last}), "
        f"{len(result.failures)} failures, {seconds:.0f} s",
    ]
    if result.left:
        lines.append(f"{result.left} problems left: {result.stopped}")
    return "\n".join(lines)


def poison_free_memory(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Leave NaN where the allocator puts the next tensor of this size: an unwritten result."""
    torch.full(shape, torch.nan, dtype=dtype, device=device)


def _alive() -> bool:
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _dims(word: str) -> tuple[int, int]:
    """Parse `64` or `192x128`."""
    head_dim, _, head_dim_v = word.partition("x")
    return int(head_dim), int(head_dim_v or head_dim)
