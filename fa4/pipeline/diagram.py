"""The pipeline of a plan as text, from its table of edges."""

from __future__ import annotations

from fa4.pipeline.edges import Edge
from fa4.plan_base import BasePlan

HEADER = ("edge", "from", "to", "by", "stages", "arrivals", "released by", "when")


def render(plan: BasePlan) -> str:
    """One line per edge, then the warps of each role and the map of tensor memory."""
    rows = [HEADER, *(_row(edge, plan) for edge in plan.edges())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    roles = ", ".join(
        f"{name} {_warps(role.first, role.warps)}" for name, role in plan.roles.items()
    )
    notes = [f"warps: {roles}", *plan.notes()]
    return "\n".join([*lines, "", *notes])


def _row(edge: Edge, plan: BasePlan) -> tuple[str, ...]:
    release = edge.released_by
    if edge.has_release:
        count = edge.release_count(plan.warps_per_stage(), plan.q_tiles)
        release = f"{edge.consumer}, {count} x {release}"
    return (
        edge.name,
        edge.producer,
        edge.consumer,
        edge.kind.value,
        str(edge.stages),
        str(edge.arrive_count(plan.warps_per_stage())),
        release,
        edge.meaning,
    )


def _warps(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"
