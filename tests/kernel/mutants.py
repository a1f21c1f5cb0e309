"""Removes one synchronising instruction of the forward kernel from its compiled PTX.

The kernel is compiled with a comment in front of every action on an edge (inline PTX that holds
nothing else), so that the instruction can be found again; the shipped kernel has no such comments.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest import mock

import cutlass.cute as cute
import torch

from fa4 import compile as compilation
from fa4 import emulator, launch
from fa4.emulator.engines import Engines
from fa4.emulator.errors import EmulatorError
from fa4.emulator.machine import Cluster
from fa4.emulator.program import Program
from fa4.pipeline.check import Ledger
from fa4.pipeline.pipes import Pipe
from fa4.plan import plan_forward
from fa4.plan_base import BasePlan
from fa4.plan_hopper import HopperTuning
from fa4.problem import Problem, default_scale, example_problem
from tests.kernel.frozen import jump

CORE_LAST = "core last"  # a schedule beside those of the emulator, see tensor_core_last
ACTIONS = ("wait", "acquire", "expect", "commit", "release")
_ARRIVE = r"mbarrier\.arrive\.shared|tcgen05\.commit"
_INSTRUCTION = {
    "wait": r"mbarrier\.try_wait",
    "acquire": r"mbarrier\.try_wait",
    "expect": r"mbarrier\.arrive\.expect_tx",
    "commit": _ARRIVE,
    "release": _ARRIVE,
}


@dataclass(frozen=True)
class Site:
    """The n-th place in the traced kernel where an action is done on an edge."""

    edge: str
    action: str
    n: int

    @property
    def mark(self) -> str:
        return f"// site {self.edge} {self.action} {self.n} ."


@contextmanager
def marked_sites() -> Iterator[None]:
    """Compile kernels with a comment in front of every action; each trace has its own ledger."""
    counts: Counter[tuple[Ledger, str, str]] = Counter()

    def marked(action: str, original: object) -> object:
        def call(pipe: Pipe, *args: object) -> object:
            key = (pipe.ledger, pipe.edge.name, action)
            cute.arch.inline_ptx(Site(*key[1:], counts[key]).mark)
            counts[key] += 1
            return original(pipe, *args)

        return call

    with mock.patch.multiple(Pipe, **{a: marked(a, getattr(Pipe, a)) for a in ACTIONS}):
        yield


def sites(ptx: str, edge: str, action: str) -> list[Site]:
    """All places of an action in marked PTX."""
    found = re.findall(rf"// site {edge} {action} (\d+) \.", ptx)
    return [Site(edge, action, n) for n in sorted({int(n) for n in found})]


def without(ptx: str, site: Site) -> str:
    """The PTX with the site's instruction removed: a wait succeeds at once, an arrive is gone."""
    lines, removed = ptx.split("\n"), 0
    for start, line in enumerate(lines):
        if site.mark in line:
            at = next(
                i
                for i in range(start, len(lines))
                if re.search(_INSTRUCTION[site.action], lines[i])
            )
            if site.action in ("wait", "acquire"):
                done = re.search(r"try_wait\S+\s+(%?\w+),", lines[at])[1]
                lines[at] = f"mov.pred {done}, 1;"
            else:
                lines[at] = ""
            removed += 1
    assert removed, f"no instruction found for {site}"
    return "\n".join(lines)


Tensors = tuple[torch.Tensor, ...]
Order = tuple[str, int]  # kind of schedule, seed


@dataclass(frozen=True)
class Case:
    """A problem, its plan, and q, k, v."""

    problem: Problem
    plan: BasePlan
    inputs: Tensors


@dataclass(frozen=True)
class Experiment:
    """Cases that share their sites and wrap every edge several times, and the right answers."""

    cases: tuple[Case, ...]
    ptx: str
    answers: tuple[Tensors, ...]

    def verdict(self, site: Site, order: Order) -> str:
        """What a run without the site's instruction shows: "" when nothing."""
        for case, answer in zip(self.cases, self.answers, strict=True):
            try:
                *results, _ = run(case, order, lambda ptx: without(ptx, site))
            except EmulatorError as error:
                return type(error).__name__
            if not all(a.equal(b) for a, b in zip(results, answer, strict=True)):
                return "wrong result"
        return ""


def experiment(kernel: str) -> Experiment:
    """The undisturbed runs of a kernel's cases."""
    cases = tuple(CASES[kernel])
    runs = [run(case, ("early", 0), lambda ptx: ptx) for case in cases]
    return Experiment(cases, runs[0][2], tuple(results[:2] for results in runs))


def causal(arch: str, rows: int, keys: int, heads: int = 2) -> Case:
    """d128, causal, all heads on one of keys and values.

    Blocks are taken from the last to the first, and keys grow towards the first: rows rescale O
    at almost every block.
    """
    return _case(arch, (rows, keys, heads), causal=True)


def windowed(rows: int, keys: int, left: int) -> Case:
    """The same on Hopper, where rows see their own key and `left` before."""
    return _case("sm_90a", (rows, keys, 2), window_left=left, window_right=0)


def done_again(case: Case) -> Case:
    """The case with all tiles of the first rows done a second time."""
    return replace(case, inputs=jump(case.inputs, 200, slice(0, 30)))


def _case(arch: str, sizes: tuple[int, int, int], **mask: object) -> Case:
    rows, keys, heads = sizes
    problem = example_problem(128, seqlen_q=rows, seqlen_k=keys, heads_q=heads, **mask)
    problem = replace(problem, scale=default_scale(128))
    generator = torch.Generator().manual_seed(3)

    def draw(length: int, heads: int) -> torch.Tensor:
        return torch.randn(1, length, heads, 128, generator=generator)

    growth = torch.linspace(6.0, 0.5, keys).reshape(1, keys, 1, 1)
    q, k, v = draw(rows, heads), draw(keys, 1) * growth, draw(keys, 1)
    inputs = tuple(t.to(torch.bfloat16) for t in (q, k, v))
    return Case(problem, plan_forward(problem, arch), inputs)


def tuned(case: Case, *tuning: object) -> Case:
    """The case with a tuning of Hopper that its number of blocks is made for."""
    return replace(case, plan=replace(case.plan, tuning=HopperTuning(*tuning)))


def run(
    case: Case, order: Order, rewrite: Callable[[str], str]
) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Attention on one SM with the kernel's PTX rewritten; returns O, LSE and the PTX before."""
    seen, original, (schedule, seed) = [], Program.from_ptx, order
    q, k, v = case.inputs
    out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan).mT.contiguous()

    def rewritten(ptx: str, entry: str) -> Program:
        seen.append(ptx)
        return original(rewrite(ptx), entry)

    with (
        mock.patch.object(Program, "from_ptx", staticmethod(rewritten)),
        nothing_after_exit(),
        tensor_core_last() if schedule == CORE_LAST else nullcontext(),
        emulator.session(
            schedule="late" if schedule == CORE_LAST else schedule,
            seed=seed,
            arch=case.plan.arch,
            num_sms=1,
        ),
    ):
        launch._emulated_counter().zero_()  # a broken kernel may leave it at any number
        strides = tuple(tensor.stride() for tensor in (q, k, v, out))
        launch.prepare(case.problem, case.plan, strides, q.device, True)(q, k, v, out, lse)
    return out, lse, seen[-1]


@contextmanager
def nothing_after_exit() -> Iterator[None]:
    """An effect still in flight when all warps have left is an EmulatorError.

    It would reach shared memory that may belong to another CTA by then.
    """
    original = Cluster.finish

    def finish(cluster: Cluster) -> None:
        for queue in cluster.engines.queues.values():
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


@contextmanager
def separate_cache(folder: str) -> Iterator[None]:
    """Keep marked kernels out of the cache of shipped ones."""
    with mock.patch.dict("os.environ", {"FA4_CACHE_DIR": folder}):
        compilation.compile_forward.cache_clear()
        yield
    compilation.compile_forward.cache_clear()


# By kernel; one SM, so that its CTA takes all tiles. Those of Hopper have a tuning that the numbers
# of blocks are made for: see test_load_bearing.py.
TWO_BUFFERS, ONE_BUFFER = (2, 64, 4, 2, (240, 24)), (2, 64, 2, 1, (240, 24))
CASES = {
    "sm_100a": (causal("sm_100a", 300, 640), causal("sm_100a", 300, 100)),
    "sm_90a": tuple(
        tuned(case, *TWO_BUFFERS)
        for case in (
            done_again(causal("sm_90a", 200, 448, heads=1)),
            causal("sm_90a", 300, 100),
            causal("sm_90a", 128, 256),
            windowed(256, 448, 192),
        )
    ),
    "sm_90a one Q buffer": tuple(
        tuned(case, *ONE_BUFFER)
        for case in (done_again(causal("sm_90a", 200, 448, heads=1)), windowed(256, 448, 64))
    ),
}
