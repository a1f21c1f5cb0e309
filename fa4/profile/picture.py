"""The timeline of roles as a PNG. Needs matplotlib, from the `plot` extra."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fa4.profile.timeline import Timeline

_RUN = "#3b4252"
_IDLE = "#f2f2f2"
_ROW_INCHES = 0.16
_NOTE_WIDTH = 150  # characters of a line under the picture
_SHOWN_EDGES = 16  # in the legend, the costliest first


class PlotExtraMissingError(RuntimeError):
    """matplotlib is not installed; the message says how to get it."""


def draw(timeline: Timeline, path: Path, cta: int, span: Sequence[int] | None = None) -> None:
    """One row per warp of a CTA, grouped by role: work dark, waits in the colour of their edge.

    span: (begin, end) of the time to draw. Raises PlotExtraMissingError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotExtraMissingError(
            "the picture needs matplotlib: pip install 'fa4-kernels[plot]'"
        ) from None
    tracks = [track for track in timeline.tracks if track.cta == cta]
    tracks = [t for role in timeline.roles() for t in tracks if t.role == role]
    colours = _colours(timeline, cta)
    figure = Figure(figsize=(12, 1.6 + _ROW_INCHES * len(tracks)), layout="constrained")
    axes = figure.subplots()
    waits = timeline.waits_of()
    for row, track in enumerate(tracks):
        axes.broken_barh([(track.begin, track.end - track.begin)], (row, 0.9), color=_RUN)
        own = waits.get((track.cta, track.warp), [])
        spans = [(wait.begin, wait.end - wait.begin) for wait in own]
        axes.broken_barh(spans, (row, 0.9), color=[colours[wait.edge] for wait in own])
    _label(axes, tracks)
    axes.set_xlim(*(span or (min(t.begin for t in tracks), max(t.end for t in tracks))))
    note = textwrap.fill(timeline.note, _NOTE_WIDTH)
    axes.set_xlabel(f"{timeline.unit}\n{note}", fontsize=8)
    axes.set_title(f"{timeline.title}, CTA {cta}", fontsize=10)
    handles = [axes.barh(0, 0, color=_RUN, label="work")]
    for edge in list(colours)[:_SHOWN_EDGES]:
        handles.append(axes.barh(0, 0, color=colours[edge], label=edge))
    figure.legend(
        handles=handles, loc="outside right upper", fontsize=7, title="waits for", frameon=False
    )
    figure.savefig(path, dpi=110)


def _colours(timeline: Timeline, cta: int) -> dict[str, tuple]:
    """A colour per edge, the edge with the most waiting first."""
    from matplotlib import colormaps

    ticks: Counter[str] = Counter()
    for wait in timeline.waits:
        if wait.cta == cta:
            ticks[wait.edge] += wait.end - wait.begin
    palette = colormaps["tab20"].colors
    ordered = palette[::2] + palette[1::2]  # the strong colours first
    return {edge: ordered[i % 20] for i, (edge, _) in enumerate(ticks.most_common())}


def _label(axes: object, tracks: list) -> None:
    """Roles at the left, between lines; the first warp on top."""
    roles = [track.role for track in tracks]
    axes.set_yticks([row + 0.45 for row in range(len(tracks))])
    axes.set_yticklabels([f"{t.role} {t.warp}" for t in tracks], fontsize=7)
    for row in range(1, len(roles)):
        if roles[row] != roles[row - 1]:
            axes.axhline(row - 0.05, color="black", linewidth=0.8)
    axes.set_ylim(len(tracks), -0.1)
    axes.set_facecolor(_IDLE)
    axes.tick_params(axis="x", labelsize=8)
