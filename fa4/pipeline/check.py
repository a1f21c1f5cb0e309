"""What every role did on every edge, noted and checked while the kernel is traced."""

from __future__ import annotations

from collections import defaultdict

from fa4.pipeline.edges import Edge, Kind


class Ledger:
    """Actions per edge of one trace."""

    def __init__(self) -> None:
        self._actions: dict[str, set[str]] = defaultdict(set)

    def note(self, edge: Edge, action: str, by: str, belongs_to: str) -> None:
        """Record an action; ValueError when it is another role's part or nobody's."""
        if by != belongs_to:
            raise ValueError(
                f"{by} may not {action} on edge {edge.name}: that is {belongs_to}'s part "
                f"({edge.producer} -> {edge.consumer})"
            )
        if action not in required_actions(edge):
            raise ValueError(
                f"{by} may not {action} on edge {edge.name}: it is filled by {edge.kind.value} and "
                f"released by {edge.released_by}, so its actions are "
                f"{', '.join(sorted(required_actions(edge)))}"
            )
        self._actions[edge.name].add(action)

    def check(self, edges: tuple[Edge, ...]) -> None:
        """ValueError unless both ends of every edge did their part."""
        for edge in edges:
            missing = required_actions(edge) - self._actions[edge.name]
            if missing:
                raise ValueError(
                    f"edge {edge.name} ({edge.producer} -> {edge.consumer}): the traced kernel "
                    f"lacks {sorted(missing)}"
                )


def required_actions(edge: Edge) -> set[str]:
    """What must be done on an edge, by its kind and its way of release."""
    filled = {"expect"} if edge.kind is Kind.TMA else {"commit"}
    handed_back = {"acquire", "release"} if edge.has_release else set()
    return {"wait"} | filled | handed_back
