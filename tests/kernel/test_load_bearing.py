"""Every synchronising action on every edge is needed: without it some schedule shows a fault."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from fa4.pipeline.check import required_actions
from fa4.plan import plan_forward
from fa4.problem import example_problem
from tests.kernel.conftest import make_plan
from tests.kernel.mutants import (
    CORE_LAST,
    Experiment,
    Site,
    experiment,
    marked_sites,
    run,
    separate_cache,
    sites,
)

SCHEDULES = [
    ("early", 0),
    ("late", 0),
    (CORE_LAST, 0),
    *[(kind, seed) for seed in range(8) for kind in ("priority", "random")],
]

# Sites whose removal cannot be seen, and why. They stay because the code is the same for all.
REDUNDANT = {
    Site("q_loaded", "acquire", 1): (
        "both query tiles are handed back together, after the last Q K^T of either"
    ),
    Site("kv_loaded", "acquire", 0): (
        "the first K of a tile follows q_loaded's acquire, by when all earlier K were used up"
    ),
    Site("kv_loaded", "acquire", 1): (
        "likewise the first V, whose slot held the last V but one in a ring of four"
    ),
    # In the end Load waits for every commit. The emulator's tensor core works off commits in order,
    # so the last one stands for all; the PTX ISA does not promise that.
    **{
        Site(edge, "acquire", n): "followed by the wait for the last commit"
        for edge, n in (
            *(("q_loaded", 2), ("q_loaded", 3)),
            *(("kv_loaded", 4), ("kv_loaded", 5), ("kv_loaded", 6)),
        )
    },
}

# The same for Hopper.
HOPPER_REDUNDANT = {
    Site("k_loaded", "wait", 3): "blocks left of a warpgroup's keys exist with a left window only",
    Site("k_loaded", "wait", 0): (
        "not redundant, but not seen either: a release given too early counts in the wrong phase "
        "only when another warpgroup is three blocks behind, which these seeds never bring about"
    ),
}

PLANS = {
    "sm_100a": (make_plan((128, 128), "causal", "bfloat16"), REDUNDANT),
    "sm_90a": (
        plan_forward(example_problem(128, causal=True, seqlen_k=640), "sm_90a"),
        HOPPER_REDUNDANT,
    ),
}
PARTS = [
    (arch, edge.name, action)
    for arch, (plan, _) in PLANS.items()
    for edge in plan.edges()
    for action in sorted(required_actions(edge))
]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Experiment]]:
    """The experiment for an architecture; its kernel is compiled at the first use."""
    with separate_cache(str(tmp_path_factory.mktemp("marked"))):

        @cache
        def of(arch: str) -> Experiment:
            with marked_sites():
                return experiment(arch)

        yield of


@pytest.mark.parametrize(("arch", "edge", "action"), PARTS, ids=lambda part: part)
def test_removal_is_noticed(
    arch: str, edge: str, action: str, marked: Callable[[str], Experiment]
) -> None:
    kernel, explained = marked(arch), PLANS[arch][1]
    places = sites(kernel.ptx, edge, action)
    assert places, "the action is in the table but not in the kernel"
    unnoticed = [
        site
        for site in places
        if site not in explained
        and not any(kernel.verdict(site, *schedule) for schedule in SCHEDULES)
    ]
    assert not unnoticed


@pytest.mark.parametrize("arch", PLANS)
def test_untouched_kernel_is_right(arch: str, marked: Callable[[str], Experiment]) -> None:
    """The control: with nothing removed, the same runs show nothing."""
    kernel = marked(arch)
    for schedule in SCHEDULES[:6]:
        for inputs, answer in zip(kernel.problems, kernel.answers, strict=True):
            out, lse, _ = run(arch, inputs, schedule, lambda ptx: ptx)
            assert out.equal(answer[0])
            assert lse.equal(answer[1])
