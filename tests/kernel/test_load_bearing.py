"""Every synchronising action on every edge is needed: without it some schedule shows a fault."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from fa4.pipeline.check import required_actions
from tests.kernel.mutants import (
    CASES,
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
    *[("priority", seed) for seed in range(8, 13)],
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

# Hopper: a K released too early (k_loaded wait 0 in front of a warpgroup's blocks, 3 behind them)
# counts for the block a ring earlier. Waits for V in between hide that, but where another
# warpgroup's first block lies a ring earlier: at the second tile after a first one of as many
# blocks as the ring has stages, or within a tile that a window makes as narrow. Hence the cases.
ONE_BUFFER_REDUNDANT = {
    Site("tile_assigned", "acquire", 0): (
        "Load has acquired the query buffers of the tile in between, and a warp hands its buffer "
        "back after its last look at its slot"
    ),
}
EXPLAINED = {
    "sm_100a": REDUNDANT,
    "sm_90a": {},
    "sm_90a one Q buffer": ONE_BUFFER_REDUNDANT,
}
PARTS = [
    (kernel, edge.name, action)
    for kernel, cases in CASES.items()
    for edge in cases[0].plan.edges()
    for action in sorted(required_actions(edge))
]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Experiment]]:
    """The experiment with a kernel, which is compiled at the first use."""
    with separate_cache(str(tmp_path_factory.mktemp("marked"))):

        @cache
        def of(kernel: str) -> Experiment:
            with marked_sites():
                return experiment(kernel)

        yield of


@pytest.mark.parametrize(("kernel", "edge", "action"), PARTS, ids=lambda part: part)
def test_removal_is_noticed(
    kernel: str, edge: str, action: str, marked: Callable[[str], Experiment]
) -> None:
    made, explained = marked(kernel), EXPLAINED[kernel]
    places = sites(made.ptx, edge, action)
    assert places, "the action is in the table but not in the kernel"
    unnoticed = [
        site
        for site in places
        if site not in explained and not any(made.verdict(site, order) for order in SCHEDULES)
    ]
    assert not unnoticed


@pytest.mark.parametrize("kernel", CASES)
def test_untouched_kernel_is_right(kernel: str, marked: Callable[[str], Experiment]) -> None:
    """The control: with nothing removed, the same runs show nothing."""
    made = marked(kernel)
    for order in SCHEDULES[:6]:
        for case, answer in zip(made.cases, made.answers, strict=True):
            out, lse, _ = run(case, order, lambda ptx: ptx)
            assert out.equal(answer[0])
            assert lse.equal(answer[1])
