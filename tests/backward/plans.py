"""What the tests of both architectures' backward plans ask alike."""

from dataclasses import replace

import pytest

from fa4.launch import labels
from fa4.pipeline import diagram
from fa4.plan_backward_base import BackwardPlan


def refuses(plan: BackwardPlan, changes: dict[str, object], message: str) -> None:
    """A tuning that cannot work is a ValueError that says why."""
    with pytest.raises(ValueError, match=message):
        replace(plan, tuning=replace(plan.tuning, **changes)).check()


def names_roles_and_has_labels(plan: BackwardPlan, released_by: set[str]) -> str:
    """Every edge of the plan; returns the diagram. released_by: what else than edges may."""
    names = {edge.name for edge in plan.edges()}
    text = diagram.render(plan)
    for edge in plan.edges():
        assert {edge.producer, edge.consumer} <= set(plan.roles)
        assert edge.released_by in names | released_by
        assert edge.name in text
    assert len(labels(plan).warps) * 32 == plan.threads
    return text
