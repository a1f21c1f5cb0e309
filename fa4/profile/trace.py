"""A timeline in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

One process per CTA and role, one track per warp; slices are waits, named after edge and stage, and
the runs of work between them; arrows lead from the arrival that ended a wait to its waiter. Viewers
take times for microseconds: one tick of the timeline is shown as one nanosecond.
"""

from __future__ import annotations

import itertools
from typing import Any

from fa4.profile.timeline import Timeline, Track, Wait

_SHOWN = 1000  # ticks per microsecond of the viewer
_INSIDE = 0.5  # ticks: an arrow binds to the slice that ends at its time, not to the next one

Event = dict[str, Any]


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """The JSON object of a trace file."""
    processes = {
        key: number
        for number, key in enumerate(dict.fromkeys((t.cta, t.role) for t in timeline.tracks))
    }
    place = {(t.cta, t.warp): (processes[t.cta, t.role], t.warp) for t in timeline.tracks}
    waits = timeline.waits_of()
    events: list[Event] = []
    for (cta, role), number in processes.items():
        name = f"CTA {cta} {role} (1 ns shown = 1 of: {timeline.unit})"
        events.append(_meta("process_name", number, 0, name=name, cta=cta, role=role))
        events.append(_meta("process_sort_index", number, 0, sort_index=number))
    for track in timeline.tracks:
        pid, tid = place[track.cta, track.warp]
        events.append(_meta("thread_name", pid, tid, name=f"{track.role} warp {track.warp}"))
        events += _slices(track, waits.get((track.cta, track.warp), []), pid, tid)
    numbers = itertools.count(1)
    for wait in timeline.waits:
        if wait.ended_by is not None and wait.end > wait.begin:
            events += _arrow(wait, place, next(numbers))
    facts = {"title": timeline.title, "unit": timeline.unit, "note": timeline.note}
    return {"displayTimeUnit": "ns", "otherData": facts, "traceEvents": events}


def timeline_of(trace: dict[str, Any]) -> Timeline:
    """The timeline that a trace was made of, but for counts of instructions and arrows.

    Raises ValueError for a file that is no such trace.
    """
    try:
        events, facts = trace["traceEvents"], trace["otherData"]
        places = {e["pid"]: e["args"] for e in events if e["name"] == "process_name"}
        lives: dict[tuple[int, int], list[int]] = {}
        waits = []
        for event in (e for e in events if e["ph"] == "X"):
            begin, end = (round(_SHOWN * at) for at in (event["ts"], event["ts"] + event["dur"]))
            life = lives.setdefault((event["pid"], event["tid"]), [begin, end])
            life[1] = end
            if event["cat"] == "wait":
                edge, _, stage = event["name"].rstrip("]").rpartition("[")
                cta = places[event["pid"]]["cta"]
                waits.append(Wait(cta, event["tid"], edge, int(stage), begin, end))
        tracks = [
            Track(places[pid]["cta"], warp, places[pid]["role"], begin, end)
            for (pid, warp), (begin, end) in lives.items()
        ]
        if not tracks:
            raise ValueError("no trace of `fa4 profile`: it has no slices")
        return Timeline(facts["title"], facts["unit"], facts["note"], tuple(tracks), tuple(waits))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no trace of `fa4 profile`: {error!r} is missing or wrong") from None


def _meta(kind: str, pid: int, tid: int, /, **values: object) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": values}


def _slices(track: Track, waits: list[Wait], pid: int, tid: int) -> list[Event]:
    events, at = [], track.begin

    def add(kind: str, name: str, begin: int, end: int) -> None:
        if end > begin:
            place = {"ph": "X", "pid": pid, "tid": tid, "cat": kind, "name": name}
            events.append(place | {"ts": begin / _SHOWN, "dur": (end - begin) / _SHOWN})

    for wait in waits:
        add("run", "run", at, wait.begin)
        add("wait", wait.name, wait.begin, wait.end)
        at = wait.end
    add("run", "run", at, track.end)
    return events


def _arrow(wait: Wait, place: dict[tuple[int, int], tuple[int, int]], number: int) -> list[Event]:
    source = wait.ended_by
    ends = (
        ("s", place[source.cta, source.warp], source.at, {}),
        ("f", place[wait.cta, wait.warp], wait.end, {"bp": "e"}),
    )
    return [
        {"ph": phase, "cat": "signal", "name": wait.edge, "id": number, "pid": pid, "tid": tid}
        | {"ts": (at - _INSIDE) / _SHOWN}
        | more
        for phase, (pid, tid), at, more in ends
    ]
