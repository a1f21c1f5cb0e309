"""A timeline of warp roles: who waited for which edge and stage, and for how long.

The emulator and the in-kernel recorder both make one; table, trace and picture are drawn from it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fa4.profile.table import table


@dataclass(frozen=True)
class Arrival:
    """What ended a wait: the last arrival of the phase, by this warp of this CTA."""

    cta: int
    warp: int
    at: int


@dataclass(frozen=True)
class Wait:
    """One warp waits for a stage of an edge in [begin, end); `ended_by` where that is known."""

    cta: int
    warp: int
    edge: str
    stage: int
    begin: int
    end: int
    ended_by: Arrival | None = None

    @property
    def name(self) -> str:
        """`kv_loaded[1]`."""
        return f"{self.edge}[{self.stage}]"


@dataclass(frozen=True)
class Track:
    """One warp's life in [begin, end). executed: its instructions, where they were counted."""

    cta: int
    warp: int
    role: str
    begin: int
    end: int
    executed: int | None = None


@dataclass(frozen=True)
class Timeline:
    """Times are in `unit`; `note` says how they came about, and stands in every output."""

    title: str
    unit: str
    note: str
    tracks: tuple[Track, ...]
    waits: tuple[Wait, ...]

    def roles(self) -> dict[str, list[Track]]:
        """Tracks by role, in the order of the first warp."""
        found: dict[str, list[Track]] = {}
        for track in self.tracks:
            found.setdefault(track.role, []).append(track)
        return found

    def waits_of(self) -> dict[tuple[int, int], list[Wait]]:
        """Waits by (CTA, warp), in order."""
        found: dict[tuple[int, int], list[Wait]] = defaultdict(list)
        for wait in sorted(self.waits, key=lambda wait: wait.begin):
            found[wait.cta, wait.warp].append(wait)
        return found


@dataclass(frozen=True)
class EdgeShare:
    """What one edge cost a role. share: of the role's time; longest: one wait of one warp."""

    edge: str
    waits: int
    ticks: int
    share: float
    longest: int


@dataclass(frozen=True)
class RoleShare:
    """One role over all its warps. ticks: their lives added; edges: the costliest first."""

    role: str
    warps: int
    executed: int | None
    ticks: int
    waiting: float
    edges: tuple[EdgeShare, ...]


def shares(timeline: Timeline) -> list[RoleShare]:
    """How each role spent its time."""
    waits = timeline.waits_of()
    return [_role(role, tracks, waits) for role, tracks in timeline.roles().items()]


def shares_text(timeline: Timeline) -> str:
    """Two tables: the roles, then every edge that a role waited for."""
    found = shares(timeline)
    counted = any(role.executed is not None for role in found)
    roles = [
        (
            role.role,
            role.warps,
            *((role.executed,) if counted else ()),
            role.ticks,
            f"{100 * role.waiting:.1f}%",
        )
        for role in found
    ]
    edges = [
        (role.role, e.edge, e.waits, e.ticks, f"{100 * e.share:.1f}%", e.longest)
        for role in found
        for e in role.edges
    ]
    executed = "instructions executed | " if counted else ""
    return "\n".join(
        [
            timeline.title,
            f"Unit: {timeline.unit}. {timeline.note}",
            "",
            table(f"role | warps | {executed}lifetime, all warps | waiting", roles),
            "",
            table("role | waits for | waits | waited, all warps | of lifetime | longest", edges),
        ]
    )


def _role(role: str, tracks: list[Track], waits: dict[tuple[int, int], list[Wait]]) -> RoleShare:
    ticks = sum(track.end - track.begin for track in tracks)
    by_edge: dict[str, list[int]] = defaultdict(list)
    for track in tracks:
        for wait in waits.get((track.cta, track.warp), ()):
            by_edge[wait.edge].append(wait.end - wait.begin)
    edges = [
        EdgeShare(edge, len(lengths), sum(lengths), sum(lengths) / max(ticks, 1), max(lengths))
        for edge, lengths in by_edge.items()
    ]
    counted = [track.executed for track in tracks if track.executed is not None]
    return RoleShare(
        role=role,
        warps=len(tracks),
        executed=sum(counted) if counted else None,
        ticks=ticks,
        waiting=sum(edge.share for edge in edges),
        edges=tuple(sorted(edges, key=lambda edge: -edge.ticks)),
    )
