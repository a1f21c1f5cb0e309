"""Every synchronising action on every edge is needed: without it some schedule shows a fault."""

from collections.abc import Iterator

import pytest

from fa4.pipeline.check import required_actions
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

PLAN = make_plan((128, 128), "causal", "bfloat16")
PARTS = [(edge.name, action) for edge in PLAN.edges() for action in sorted(required_actions(edge))]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Experiment]:
    with separate_cache(str(tmp_path_factory.mktemp("marked"))), marked_sites():
        yield experiment()


@pytest.mark.parametrize(("edge", "action"), PARTS, ids=lambda part: part)
def test_removal_is_noticed(edge: str, action: str, marked: Experiment) -> None:
    places = sites(marked.ptx, edge, action)
    assert places, "the action is in the table but not in the kernel"
    unnoticed = [
        site
        for site in places
        if site not in REDUNDANT
        and not any(marked.verdict(site, *schedule) for schedule in SCHEDULES)
    ]
    assert not unnoticed


def test_what_is_listed_as_redundant_exists(marked: Experiment) -> None:
    for site in REDUNDANT:
        assert site in sites(marked.ptx, site.edge, site.action)


def test_untouched_kernel_is_right(marked: Experiment) -> None:
    """The control: with nothing removed, the same runs show nothing."""
    for schedule in SCHEDULES[:6]:
        for inputs, answer in zip(marked.problems, marked.answers, strict=True):
            out, lse, _ = run(inputs, *schedule, lambda ptx: ptx)
            assert out.equal(answer[0])
            assert lse.equal(answer[1])
