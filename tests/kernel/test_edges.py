"""The table of edges, and the ledger that checks a trace against it."""

from dataclasses import replace

import pytest

from fa4.launch import labels
from fa4.pipeline import diagram
from fa4.pipeline.check import Ledger, required_actions
from fa4.pipeline.edges import Kind
from fa4.pipeline.pipes import (
    BackwardPipes,
    HopperBackwardPipes,
    HopperPipes,
    Pipe,
    Pipes,
    PipeSet,
    build_pipes,
)
from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.plan_blackwell import BlackwellPlan
from fa4.plan_hopper import MOST_WARPGROUPS
from fa4.problem import example_problem
from tests.kernel.conftest import make_plan


def test_edges_name_roles_and_each_other(every_plan: BlackwellPlan) -> None:
    edges = every_plan.edges()
    names = {edge.name for edge in edges}
    assert len(names) == len(edges)
    for edge in edges:
        assert {edge.producer, edge.consumer} <= set(every_plan.roles)
        assert edge.released_by in names | {"commit", "warps"}


def test_arrive_counts_follow_the_warp_schedule(every_plan: BlackwellPlan) -> None:
    counts = {e.name: e.arrive_count(every_plan.warps_per_stage()) for e in every_plan.edges()}
    assert counts["p_written"] == 4  # the four warps of one query tile, not all eight
    assert counts["o_rescaled"] == 4
    assert all(counts[e.name] == 1 for e in every_plan.edges() if e.kind is not Kind.WARPS)


def test_every_barrier_has_a_label(every_plan: BlackwellPlan) -> None:
    named = labels(every_plan)
    barriers = sum(e.stages * (1 + e.has_release) for e in every_plan.edges())
    assert len(named.mbarriers) == barriers
    assert [str(label) for label in named.named_barriers.values()] == ["tmem_drained[0]"]
    assert len(named.warps) * 32 == every_plan.threads


@pytest.mark.parametrize("ping_pong", [False, True])
def test_every_warpgroup_has_its_named_barriers(ping_pong: bool) -> None:
    plan = plan_forward(example_problem(64), "sm_90a")
    tuning = replace(plan.tuning, warpgroups=MOST_WARPGROUPS, ping_pong=ping_pong)
    named = labels(replace(plan, tuning=tuning)).named_barriers
    assert set(named) <= set(range(1, 16))  # 0 is __syncthreads, hardware has 16
    names = ["warpgroup_arrived", "turn_handed_on"] if ping_pong else ["warpgroup_arrived"]
    expected = [f"{name}[{t}]" for name in names for t in range(MOST_WARPGROUPS)]
    assert [str(named[number]) for number in sorted(named)] == expected


def test_diagram_shows_every_edge(every_plan: BlackwellPlan) -> None:
    text = diagram.render(every_plan)
    assert all(edge.name in text and edge.meaning in text for edge in every_plan.edges())


def _complete(plan: BlackwellPlan) -> Ledger:
    ledger = Ledger()
    for edge in plan.edges():
        for action in required_actions(edge):
            ledger.note(edge, action, by="x", belongs_to="x")
    return ledger


def test_a_complete_trace_passes(every_plan: BlackwellPlan) -> None:
    _complete(every_plan).check(every_plan.edges())


def test_a_forgotten_action_is_refused(every_plan: BlackwellPlan) -> None:
    for edge in every_plan.edges():
        for action in required_actions(edge):
            ledger = _complete(every_plan)
            ledger._actions[edge.name].remove(action)
            with pytest.raises(ValueError, match=rf"{edge.name} .*lacks \['{action}'\]"):
                ledger.check(every_plan.edges())


@pytest.mark.parametrize("action", ["acquire", "release"])
def test_what_an_edge_has_no_barrier_for_is_refused(action: str, every_plan: BlackwellPlan) -> None:
    for edge in every_plan.edges():
        role = edge.producer if action == "acquire" else edge.consumer
        pipe = Pipe(edge, full=None, empty=None, role=role, ledger=Ledger())
        arguments = {"acquire": (0, 0), "release": (0,)}[action]
        if not edge.has_release:
            words = rf"{role} may not {action} on edge {edge.name}: .*{edge.released_by}"
            with pytest.raises(ValueError, match=words):
                getattr(pipe, action)(*arguments)


def test_bytes_are_announced_to_tma_edges_only() -> None:
    edge = make_plan((64, 64), "full", "bfloat16").edges()[2]
    with pytest.raises(ValueError, match="mma may not expect on edge s_computed: it is filled by"):
        Ledger().note(edge, "expect", by="mma", belongs_to="mma")


KINDS = {
    ("sm_100a", "forward"): Pipes,
    ("sm_90a", "forward"): HopperPipes,
    ("sm_100a", "backward"): BackwardPipes,
    ("sm_90a", "backward"): HopperBackwardPipes,
}


@pytest.mark.parametrize(("kernel", "kind"), KINDS.items(), ids=str)
def test_an_edge_without_a_field_and_a_field_without_an_edge_are_named(
    kernel: tuple[str, str], kind: type[PipeSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    arch, direction = kernel
    plan_of = plan_forward if direction == "forward" else plan_backward
    plan = plan_of(example_problem(64), arch)
    new = replace(plan.edges()[0], name="mask_loaded")
    extra = rf"has edges \['mask_loaded'\] that class {kind.__name__} of fa4/pipeline/pipes.py"
    lost = rf"class {kind.__name__} .* has fields \['{plan.edges()[-1].name}'\] that are no edges"
    for edges, message in (((*plan.edges(), new), extra), (plan.edges()[:-1], lost)):
        with monkeypatch.context() as patch:
            patch.setattr(type(plan), "edges", lambda _, edges=edges: edges)
            with pytest.raises(ValueError, match=message):
                build_pipes(plan, kind, smem=None, ledger=Ledger())


def test_another_roles_part_is_refused(every_plan: BlackwellPlan) -> None:
    edge = every_plan.edges()[0]
    with pytest.raises(ValueError, match="mma may not expect on edge q_loaded: that is load's"):
        Ledger().note(edge, "expect", by="mma", belongs_to="load")
