"""Fences that order tensor-memory accesses stand in the compiled PTX wherever the table says so."""

import re
from collections import defaultdict

import pytest

from bench.mutants.marks import marked_sites
from fa4.compile import artifacts
from fa4.pipeline.edges import Kind
from tests.kernel.conftest import make_plan

PLAN = make_plan((128, 128), "causal", "bfloat16")
BEFORE, AFTER = "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync"


@pytest.fixture(scope="module")
def code() -> dict[tuple[str, str], list[str]]:
    """PTX of every action, by edge and action: from its mark to the next mark."""
    with marked_sites():
        ptx = artifacts.__wrapped__(PLAN).ptx  # not the remembered kernel, which has no marks
    found = defaultdict(list)
    for part in ptx.split("// site ")[1:]:
        edge, action = part.split(maxsplit=2)[:2]
        found[edge, action].append(part)
    return found


@pytest.mark.parametrize("edge", PLAN.edges(), ids=lambda edge: edge.name)
def test_both_sides_of_an_edge_are_fenced_as_the_table_says(edge, code) -> None:
    assert code[edge.name, "wait"]
    assert bool(code[edge.name, "commit"]) == (edge.kind is not Kind.TMA)
    fences = [bool(re.search(rf"try_wait[\s\S]*{AFTER}", t)) for t in code[edge.name, "wait"]]
    expected = [edge.orders_tmem] * len(fences)
    # o_rescaled: p_written's fence follows. scale_written of a first block: O is not touched.
    unfenced = {"o_rescaled": len(fences), "scale_written": 2}.get(edge.name, 0)
    assert fences == [False] * unfenced + expected[unfenced:]
    arrive = "mbarrier.arrive.shared"
    for text in code[edge.name, "commit"]:
        assert (arrive in text) == (edge.kind is Kind.WARPS)  # tcgen05.commit is its own fence
        fenced = bool(re.search(rf"{BEFORE}[\s\S]*{arrive}", text))
        assert fenced == (edge.orders_tmem and edge.kind is Kind.WARPS)


def test_every_edge_of_the_mma_warp_and_the_rescale_order_tensor_memory() -> None:
    """O is loaded after scale_written alone, S and P after edges with the MMA warp."""
    ordered = {edge.name for edge in PLAN.edges() if edge.orders_tmem}
    umma = {edge.name for edge in PLAN.edges() if edge.kind is Kind.UMMA}
    assert ordered == umma | {"scale_written", "o_rescaled", "p_written", "p_tail_written"}
