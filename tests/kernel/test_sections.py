"""Which heads share a section of the grid: pure Python rules."""

from itertools import product

import pytest

from fa4 import launch, launch_backward
from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.plan_base import BasePlan
from fa4.problem import Problem, example_problem

L2, SMS = {"sm_90a": 50 << 20, "sm_100a": 126 << 20}, {"sm_90a": 132, "sm_100a": 148}
PLANNERS = {"forward": plan_forward, "backward": plan_backward}
MASKS = {"full": {}, "causal": {"causal": True}, "window": {"causal": True, "window_left": 64}}


def made(arch: str, way: str, mask: str) -> BasePlan:
    return PLANNERS[way](example_problem(64, **MASKS[mask]), arch)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("way", PLANNERS)
@pytest.mark.parametrize("arch", SMS)
def test_the_last_section_is_the_smallest_that_ends_evenly(arch: str, way: str, mask: str) -> None:
    """Tiles differ in length under a causal mask alone; CTAs of Blackwell's forward pass do not
    take them on demand, so that all its sections must be even.
    """
    plan = made(arch, way, mask)
    each = (arch, way, mask) == ("sm_100a", "forward", "causal")
    for heads, tiles, fitting in product((1, 2, 7, 64, 1000), (1, 3, 64, 999), (1, 5, 66, 4096)):
        at_end = next(n for n in range(1, 1000) if mask != "causal" or n * tiles >= 2 * SMS[arch])
        sizes = launch.section_sizes(plan, heads, tiles, fitting)
        section, last = sizes["section"], sizes["last_section"]
        wanted = next(n for n in range(fitting, 9999, fitting) if n >= at_end or not each)
        assert section == min(heads, wanted)
        enough = min(heads, wanted if each else at_end)
        assert last == min(n for n in range(heads, 0, -section) if n >= enough)


def problem(lengths: tuple[int, int], heads: tuple[int, int], **options: object) -> Problem:
    (q, k), (of_q, of_kv) = lengths, heads
    return example_problem(64, seqlen_q=q, seqlen_k=k, heads_q=of_q, heads_kv=of_kv, **options)


def test_sections_of_a_backward_pass() -> None:
    """32 heads of 512 queries, 32 times: 66 of them fit, 66 have two tiles per SM."""
    asked = problem((512, 512), (32, 32), batch=32, causal=True)
    plan = plan_backward(asked, "sm_90a")
    # Q, dO in 16 bits and the sum of dQ in 32, of the queries of one head
    fitting = L2["sm_90a"] // 3 // (512 * (64 * 2 + 64 * 2 + 64 * 4))
    at_end = 2 * SMS["sm_90a"] // (512 // plan.n_block)
    assert (plan.n_block, fitting, at_end) == (128, 66, 66)
    last = 32 * 32
    while last - fitting >= at_end:
        last -= fitting
    assert launch_backward.sections(asked, plan) == {"section": 66, "last_section": last}
    assert last == 100


@pytest.mark.parametrize(("queries", "section"), [(8192, 1), (2048, 4)])
def test_heads_of_a_group_share_their_part_of_a_backward_pass(queries: int, section: int) -> None:
    """Of 16 query heads on 4 of keys, four read a key block: a fourth as many fit."""
    asked = problem((queries, 1000), (16, 4), batch=16, causal=True)
    plan = plan_backward(asked, "sm_90a")
    assert section == L2["sm_90a"] // 3 // (queries * 4 * (64 * 2 + 64 * 2 + 64 * 4))
    at_end = 2 * SMS["sm_90a"] // (1024 // plan.n_block)  # keys in whole blocks
    assert at_end == 33
    last = 4 * 16
    while last - section >= at_end:
        last -= section
    assert launch_backward.sections(asked, plan) == {"section": section, "last_section": last}


@pytest.mark.parametrize(("arch", "section", "last"), [("sm_90a", 16, 32), ("sm_100a", 40, 48)])
def test_sections_of_a_forward_pass(arch: str, section: int, last: int) -> None:
    """Groups of 8 query heads, which share keys and values, stay together."""
    asked = problem((2048, 16384), (64, 8), batch=2, causal=True)
    plan = plan_forward(asked, arch)
    assert section == 8 * (L2[arch] // 6 // (16384 * (64 * 2 + 64 * 2)))
    assert launch.sections(asked, plan) == {"section": section, "last_section": last}
    at_end = next(n for n in range(128) if n * -(-2048 // plan.cta_rows) >= 2 * SMS[arch])
    assert last - section < at_end <= last


def test_large_sections_keep_groups_together_too() -> None:
    """None of 8 query heads on one of keys is in another section, where few heads fit in L2."""
    asked = problem((2048, 131072), (128, 16), causal=True)
    sizes = launch.sections(asked, plan_forward(asked, "sm_100a"))
    assert all(heads % 8 == 0 for heads in sizes.values())
    assert sizes["section"] * 2048 // (2 * 128) >= 2 * SMS["sm_100a"]
