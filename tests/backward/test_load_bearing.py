"""Every synchronising action of the backward is needed: without it the checker, or some schedule,
shows a fault.
"""

import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from unittest import mock

import pytest
import torch

import fa4
from bench.mutants.experiment import nothing_after_exit
from bench.mutants.marks import marked_sites, separate_cache
from fa4 import emulator
from fa4.emulator.engines import Engines
from fa4.emulator.errors import EmulatorError
from fa4.emulator.mutants import Site, sites, without
from fa4.emulator.program import Program
from fa4.launch_backward import BackwardTensors, prepare
from fa4.pipeline import barriers
from fa4.pipeline.check import required_actions
from fa4.plan_backward import plan_backward
from fa4.plan_backward_base import BackwardPlan
from fa4.problem import Problem
from tests.asked import problem_of
from tests.backward.gradients import Tensors, draw, upstream

CHECKED = "checked"  # the checker looks on
STARVED = "starved"  # a schedule beside those of the emulator, see starved
SCHEDULES = [
    (CHECKED, 0),
    ("early", 0),
    ("late", 0),
    *((STARVED, order) for order in range(1, 28, 3)),
    *((kind, seed) for seed in range(8) for kind in ("priority", "random")),
]
CONTROLS = [*SCHEDULES[:5], ("priority", 0), ("random", 0)]


@dataclass(frozen=True)
class Case:
    """A kernel and what it works on: at most two blocks of keys for a row, so that the sum of dQ
    has the same bits in any order.
    """

    arch: str
    dims: tuple[int, int]
    lengths: tuple[int, int] = (300, 200)  # six rounds of the rings on each of two blocks of keys
    heads: tuple[int, int] = (2, 1)
    window_left: int | None = None
    deterministic: bool = False

    def options(self) -> dict[str, object]:
        """Of `flash_attn_func`."""
        window = (self.window_left, None)
        return {"causal": True, "window_size": window, "deterministic": self.deterministic}


# On Hopper one CTA takes all tiles. Those have no, one or two blocks of queries per head: with more
# the rings of those would keep a warp from running ahead as far as the slots of tiles.
KERNELS = {
    "own keys": Case("sm_90a", (128, 128), (120, 376), (2, 2), 64),
    "dq in turn": Case("sm_90a", (64, 64), (250, 506), (2, 2), 128, deterministic=True),
    "tensor memory": Case("sm_100a", (128, 128)),
}
LONG = {
    "columns split": Case("sm_90a", (192, 128), (120, 248), (4, 2), 64),
    "shared columns": Case("sm_100a", (192, 128)),
}

# what an action on an edge is in PTX: a commit or a release may be one of the tensor core
KINDS = {
    "wait": {"wait"},
    "acquire": {"wait"},
    "expect": {"expect"},
    "commit": {"arrive", "commit"},
    "release": {"arrive", "commit"},
}


@pytest.fixture(autouse=True)
def arch() -> None:
    """A kernel has its own here."""


def places(ptx: str, edge: str, action: str) -> list[Site]:
    """The first instruction behind each mark of the action."""
    return [
        site
        for site in sites(ptx)
        if site.where.startswith(f"{edge} {action} ") and site.kind in KINDS[action] and not site.n
    ]


def kernel_plan(kernel: str) -> BackwardPlan:
    case = (KERNELS | LONG)[kernel]
    inputs = draw(case.lengths, case.heads, case.dims)
    return plan_backward(problem_of(*inputs, **case.options()), case.arch)


PARTS = [
    pytest.param(kernel, edge.name, action, marks=marks, id=f"{kernel}-{edge.name}-{action}")
    for kernels, marks in ((KERNELS, ()), (LONG, pytest.mark.slow))
    for kernel in kernels
    for edge in kernel_plan(kernel).edges()
    for action in sorted(required_actions(edge))
]
CASES = [*KERNELS, *(pytest.param(kernel, marks=pytest.mark.slow) for kernel in LONG)]
HOPPER = [
    case
    for kernel, case in zip(KERNELS | LONG, CASES, strict=True)
    if (KERNELS | LONG)[kernel].arch == "sm_90a"
]


@dataclass(frozen=True)
class Experiment:
    """A marked kernel, what it works on, and the right gradients."""

    problem: Problem
    plan: BackwardPlan
    tensors: BackwardTensors
    ptx: str
    answer: Tensors

    def verdict(self, rewrite: Callable[[str], str], schedule: str, seed: int) -> str:
        """What a run with the kernel rewritten shows: "" when nothing."""
        try:
            results = run(self.problem, self.plan, self.tensors, (schedule, seed), rewrite)[0]
        except EmulatorError as error:
            return type(error).__name__
        if not all(a.equal(b) for a, b in zip(results, self.answer, strict=True)):
            return "wrong result"
        return ""

    def noticed(self, rewrite: Callable[[str], str]) -> bool:
        """Whether some schedule shows something."""
        return any(self.verdict(rewrite, *schedule) for schedule in SCHEDULES)


def run(
    problem: Problem,
    plan: BackwardPlan,
    tensors: BackwardTensors,
    order: tuple[str, int],
    rewrite: Callable[[str], str],
) -> tuple[Tensors, str]:
    """Gradients of the rewritten kernel on one SM, and its PTX before."""
    seen, original = [], Program.from_ptx
    results = tuple(torch.full_like(t, torch.nan) for t in (tensors.q, tensors.k, tensors.v))
    gradients = dict(zip(("dq", "dk", "dv"), results, strict=True))

    def rewritten(ptx: str, entry: str) -> Program:
        seen.append(ptx)
        return original(rewrite(ptx), entry)

    kind, seed = order
    with (
        mock.patch.object(Program, "from_ptx", staticmethod(rewritten)),
        nothing_after_exit(),
        starved(seed) if kind == STARVED else nullcontext(),
        emulator.session(
            {STARVED: "late", CHECKED: "early"}.get(kind, kind),
            seed,
            arch=plan.arch,
            num_sms=1,
            check=kind == CHECKED,
        ),
    ):
        given = tensors._replace(**gradients)
        prepare(problem, plan, given.strides(), given.q.device)(given)
    return results, seen[-1]


@contextmanager
def starved(order: int) -> Iterator[None]:
    """Under `late` the effect of this number, in a CTA one of its loads, happens as the last."""
    original = Engines.step

    def step(engines: Engines, key: Hashable | None = None) -> bool:
        others = [k for k, queue in engines.queues.items() if queue[0].order != order]
        if key is None and others:
            key = min(others, key=lambda k: engines.queues[k][0].order)
        return original(engines, key)

    with mock.patch.object(Engines, "step", step):
        yield


def experiment(kernel: str) -> Experiment:
    """The undisturbed run."""
    case = (KERNELS | LONG)[kernel]
    inputs = draw(case.lengths, case.heads, case.dims)
    grad_out, grad_lse = upstream(inputs)
    out, lse = fa4.flash_attn_func(*inputs, **case.options(), return_lse=True)
    tensors = BackwardTensors(*inputs, out, grad_out, lse, grad_lse, *inputs)
    problem, plan = problem_of(*inputs, **case.options()), kernel_plan(kernel)
    answer, ptx = run(problem, plan, tensors, ("early", 0), lambda ptx: ptx)
    return Experiment(problem, plan, tensors, ptx, answer)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Experiment]]:
    """The experiment for a kernel, which is compiled at the first use."""
    with separate_cache(str(tmp_path_factory.mktemp("marked"))):

        @cache
        def of(kernel: str) -> Experiment:
            with marked_sites():
                return experiment(kernel)

        yield of


@pytest.mark.parametrize(("kernel", "edge", "action"), PARTS)
def test_removal_is_noticed(
    kernel: str, edge: str, action: str, marked: Callable[[str], Experiment]
) -> None:
    made = marked(kernel)
    found = places(made.ptx, edge, action)
    assert found, "the action is in the table but not in the kernel"
    unnoticed = [s for s in found if not made.noticed(lambda ptx, s=s: without(ptx, s))]
    assert not unnoticed


@pytest.mark.parametrize("kernel", HOPPER)
def test_barriers_before_dk_and_dv_leave_are_noticed(
    kernel: str, marked: Callable[[str], Experiment]
) -> None:
    made = marked(kernel)
    number = barriers.GRADIENTS_WRITTEN.id
    pattern = rf"^\s*(bar(rier)?\.sync\S*|barrier\.cta\.sync\S*)\s+{number}, 256;"
    found = list(re.finditer(pattern, made.ptx, re.MULTILINE))
    assert len(found) == 2
    for place in found:
        start, end = place.span()
        assert made.noticed(lambda ptx, a=start, b=end: ptx[:a] + ptx[b:])


@pytest.mark.parametrize("kernel", CASES)
def test_untouched_kernel_is_right(kernel: str, marked: Callable[[str], Experiment]) -> None:
    """The control: with nothing removed, the same runs show nothing."""
    made = marked(kernel)
    assert not any(made.verdict(lambda ptx: ptx, *schedule) for schedule in CONTROLS)
