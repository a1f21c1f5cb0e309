"""Removes one synchronising instruction of the forward kernel from its compiled PTX.

The kernel is compiled with a comment in front of every action on an edge (inline PTX that holds
nothing else), so that the instruction can be found again; the shipped kernel has no such comments.
"""

import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from unittest import mock

import cutlass.cute as cute
import torch

import fa4
from fa4 import compile as compilation
from fa4 import emulator
from fa4.emulator.engines import Engines
from fa4.emulator.errors import EmulatorError
from fa4.emulator.machine import Cluster
from fa4.emulator.program import Program
from fa4.pipeline.pipes import Pipe

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
    """Compile kernels with a comment in front of every action."""
    counts: dict[tuple[str, str], int] = {}

    def marked(action: str, original: object) -> object:
        def call(pipe: Pipe, *args: object) -> object:
            key = (pipe.edge.name, action)
            counts[key] = counts.get(key, 0) + 1
            cute.arch.inline_ptx(Site(*key, counts[key] - 1).mark)
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


@dataclass(frozen=True)
class Experiment:
    """A marked kernel, problems that wrap every edge several times, and the right answers."""

    arch: str
    problems: tuple[Tensors, ...]
    ptx: str
    answers: tuple[Tensors, ...]

    def verdict(self, site: Site, schedule: str, seed: int) -> str:
        """What a run without the site's instruction shows: "" when nothing."""
        for inputs, answer in zip(self.problems, self.answers, strict=True):
            try:
                *results, _ = run(
                    self.arch, inputs, (schedule, seed), lambda ptx: without(ptx, site)
                )
            except EmulatorError as error:
                return type(error).__name__
            if not all(a.equal(b) for a, b in zip(results, answer, strict=True)):
                return "wrong result"
        return ""


def experiment(arch: str) -> Experiment:
    """d128, causal, two heads, one SM: four tiles of several blocks, and four of a single one.

    Blocks are taken from the last to the first, and keys grow towards the first: rows rescale O
    at almost every block.
    """
    problems = tuple(_draw(rows, keys) for rows, keys in ((300, 640), (300, 100)))
    runs = [run(arch, inputs, ("early", 0), lambda ptx: ptx) for inputs in problems]
    return Experiment(arch, problems, runs[0][2], tuple(results[:2] for results in runs))


def _draw(rows: int, keys: int) -> Tensors:
    generator = torch.Generator().manual_seed(3)

    def draw(length: int, heads: int) -> torch.Tensor:
        return torch.randn(1, length, heads, 128, generator=generator)

    growth = torch.linspace(6.0, 0.5, keys).reshape(1, keys, 1, 1)
    q, k, v = draw(rows, 2), draw(keys, 1) * growth, draw(keys, 1)
    return tuple(t.to(torch.bfloat16) for t in (q, k, v))


def run(
    arch: str, inputs: Tensors, order: tuple[str, int], rewrite: Callable[[str], str]
) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Causal attention with the kernel's PTX rewritten; returns O, LSE and the PTX before."""
    seen, original, (schedule, seed) = [], Program.from_ptx, order

    def rewritten(ptx: str, entry: str) -> Program:
        seen.append(ptx)
        return original(rewrite(ptx), entry)

    with (
        mock.patch.object(Program, "from_ptx", staticmethod(rewritten)),
        mock.patch.dict("os.environ", {"FA4_EMULATE_ARCH": arch}),
        nothing_after_exit(),
        tensor_core_last() if schedule == CORE_LAST else nullcontext(),
        emulator.session(
            schedule="late" if schedule == CORE_LAST else schedule,
            seed=seed,
            arch=arch,
            num_sms=1,
        ),
    ):
        out, lse = fa4.flash_attn_func(*inputs, causal=True, return_lse=True)
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
