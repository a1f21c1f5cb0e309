"""Every synchronising instruction of the forward kernels is needed: without it something shows."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from bench.mutants.cases import CASES
from bench.mutants.experiment import Experiment, Mutant, experiment
from bench.mutants.explanations import explanation
from bench.mutants.marks import separate_cache
from fa4.emulator.mutants import sites, weakened, without
from fa4.pipeline.check import required_actions

PARTS = [
    (kernel, edge.name, action)
    for kernel, cases in CASES.items()
    for edge in cases[0].plan.edges()
    for action in sorted(required_actions(edge))
]
KINDS = [
    *(("sm_100a", kind) for kind in ("tmem fence", "tmem wait", "fence")),
    *(("sm_100a", kind) for kind in ("named barrier", "bulk group")),
    *(("sm_90a", kind) for kind in ("fence", "named barrier", "bulk group", "wgmma")),
]
Marked = Callable[[str], Experiment]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Marked]:
    """The experiment with a kernel, which is compiled, and found clean, at the first use."""
    with separate_cache(str(tmp_path_factory.mktemp("marked"))):
        yield cache(experiment)


def removals(kernel: str, marked: Marked) -> list[Mutant]:
    """Those that should be noticed."""
    every = marked(kernel).mutants()
    return [m for m in every if m.change == "removed" and not explanation(kernel, m)]


@pytest.mark.parametrize(("kernel", "edge", "action"), PARTS, ids=lambda part: part)
def test_an_action_on_an_edge_is_needed(
    kernel: str, edge: str, action: str, marked: Marked
) -> None:
    here = [
        mutant
        for mutant in removals(kernel, marked)
        if mutant.site.where.startswith(f"{edge} {action} ") and mutant.site.kind != "tmem fence"
    ]
    if not here:
        assert (kernel, edge, action) == ("sm_90a one Q buffer", "tile_assigned", "acquire")
        return
    assert marked(kernel).checked(here[0]).by


@pytest.mark.parametrize(("kernel", "kind"), KINDS, ids=lambda part: part)
def test_other_instructions_are_needed(kernel: str, kind: str, marked: Marked) -> None:
    mutant = next(m for m in removals(kernel, marked) if m.site.kind == kind)
    assert marked(kernel).checked(mutant).by


@pytest.mark.slow
@pytest.mark.parametrize("kernel", CASES)
def test_every_mutant_is_noticed_or_explained(kernel: str, marked: Marked) -> None:
    made = marked(kernel)
    silent = [
        str(mutant)
        for mutant in made.mutants()
        if not explanation(kernel, mutant) and not made.verdict(mutant).by
    ]
    assert not silent


TEXT = """.file 1 "a/b.py"
.loc 1 3 0
// site kv_loaded wait 0 .
mbarrier.try_wait.parity.shared.b64 P1, [%r1], %r2;
@%p3 mbarrier.arrive.shared.b64 _, [%r1];
cp.async.bulk.wait_group 0;
bar.sync 3, 128;
add.u32 %r1, %r1, 1;"""


def test_sites_and_mutants_of_a_text() -> None:
    found = sites(TEXT)
    assert [(s.kind, s.where) for s in found] == [
        ("wait", "kv_loaded wait 0"),
        ("arrive", "kv_loaded wait 0"),
        ("bulk group", "b.py: 3"),
        ("named barrier", "b.py: 3"),
    ]
    changed = [without(TEXT, site).split("\n")[site.line] for site in found]
    assert changed == ["mov.pred P1, 1;", "", "", ""]
    weaker = [weakened(TEXT, site) for site in found]
    assert weaker[:2] == [None, None]
    assert "wait_group.read 0;" in weaker[2]
    assert "bar.arrive 3, 128;" in weaker[3]
