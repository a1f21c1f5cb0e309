"""Ratios of ours to the best peer, their geometric means, and the tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.hopper.cells import length_name
from bench.hopper.implementations import OURS
from bench.hopper.measure import OK, Measurement, Outcome
from fa4.profile.table import table


@dataclass(frozen=True)
class Goals:
    """No cell may be slower than `floor` against the best peer, and the mean shall reach `mean`."""

    mean: float
    floor: float


FORWARD_GOALS = Goals(mean=1.10, floor=0.98)
BACKWARD_GOALS = Goals(mean=1.00, floor=0.93)


def best_peer(measurement: Measurement) -> str | None:
    """The fastest peer with a checked result, not a variant of ours; None without one."""
    times = {
        name: outcome.ms
        for name, outcome in measurement.outcomes.items()
        if not name.startswith(OURS) and outcome.status == OK
    }
    return min(times, key=times.__getitem__) if times else None


def ratio(measurement: Measurement) -> float | None:
    """Speed of ours over that of the best peer; None when either has no result."""
    ours, peer = measurement.outcomes[OURS], best_peer(measurement)
    if peer is None or ours.status != OK:
        return None
    return measurement.outcomes[peer].ms / ours.ms


def geometric_mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True)
class Summary:
    """The ratios of a run in numbers."""

    cells: int
    compared: int  # cells with a ratio
    geometric_mean: float | None
    by_group: dict[str, float]
    lowest: float | None
    below_floor: list[str]


def summarise(measurements: Sequence[Measurement], goals: Goals = FORWARD_GOALS) -> Summary:
    """Ratios of all cells that have one."""
    ratios = {str(m.cell): r for m in measurements if (r := ratio(m)) is not None}
    groups = {m.cell.group: [] for m in measurements if ratio(m) is not None}
    for measurement in measurements:
        if (value := ratio(measurement)) is not None:
            groups[measurement.cell.group].append(value)
    return Summary(
        cells=len(measurements),
        compared=len(ratios),
        geometric_mean=geometric_mean(ratios.values()),
        by_group={group: geometric_mean(values) for group, values in groups.items()},
        lowest=min(ratios.values(), default=None),
        below_floor=[cell for cell, value in ratios.items() if value < goals.floor],
    )


def report(measurements: Sequence[Measurement], goals: Goals = FORWARD_GOALS) -> str:
    """All tables of a run."""
    parts = [
        f"TFLOPS\n{_rates(measurements)}",
        f"Ours / best peer\n{_ratios(measurements)}",
        _verdict(summarise(measurements, goals), goals),
        f"Eager calls, medians over the cells\n{_overheads(measurements)}",
        _problems(measurements),
    ]
    return "\n\n".join(part for part in parts if part)


def cell_line(measurement: Measurement) -> str:
    """One cell in one line: TFLOPS of everybody, or the status, and the ratio."""
    rates = ", ".join(f"{name} {_rate(o)}" for name, o in measurement.outcomes.items())
    value = ratio(measurement)
    against = "" if value is None else f"; {value:.3f} x {best_peer(measurement)}"
    gemm = measurement.gemm_tflops
    return f"{measurement.cell}: {rates}{against}; gemm {'-' if gemm is None else f'{gemm:.0f}'}"


def _rates(measurements: Sequence[Measurement]) -> str:
    names = list(dict.fromkeys(name for m in measurements for name in m.outcomes))
    rows = []
    for group, line in _lines(measurements):
        for name in names:
            rows.append((group, name, *_cells(line, lambda m, name=name: _rate(m.outcomes[name]))))
        rows.append((group, "gemm", *_cells(line, lambda m: _number(m.gemm_tflops, ".0f"))))
    return table(_header("cells | kernel", measurements), rows)


def _ratios(measurements: Sequence[Measurement]) -> str:
    means = summarise(measurements).by_group
    rows = [
        (
            group,
            *_cells(line, lambda m: _number(ratio(m), ".3f")),
            _number(means.get(group), ".3f"),
        )
        for group, line in _lines(measurements)
    ]
    return table(_header("cells", measurements) + " | mean", rows)


def _verdict(summary: Summary, goals: Goals) -> str:
    if summary.geometric_mean is None:
        return "No cell has both ours and a peer."
    below = ", ".join(summary.below_floor) or "none"
    return (
        f"{summary.compared} of {summary.cells} cells compared: geometric mean "
        f"{summary.geometric_mean:.3f} (goal {goals.mean:.2f}), lowest {summary.lowest:.3f}; "
        f"below {goals.floor}: {below}"
    )


def _overheads(measurements: Sequence[Measurement]) -> str:
    outcomes: dict[str, list[Outcome]] = {}
    for measurement in measurements:
        for name, outcome in measurement.outcomes.items():
            outcomes.setdefault(name, []).extend([outcome] if outcome.status == OK else [])
    rows = []
    for name, good in outcomes.items():
        host = [o.host_us for o in good]
        gaps = [o.eager_ms / o.ms for o in good]
        rows.append(
            (
                name,
                _number(median(host) if host else None, ".1f"),
                _number(max(host, default=None), ".1f"),
                _number(median(gaps) if gaps else None, ".3f"),
            )
        )
    return table("kernel | host us | host us, most | eager / graph time", rows)


def _problems(measurements: Sequence[Measurement]) -> str:
    """Every status but ok, once per reason."""
    cells: dict[tuple[str, str, str], list[str]] = {}
    for measurement in measurements:
        for name, outcome in measurement.outcomes.items():
            if outcome.status != OK:
                key = (name, outcome.status, outcome.note)
                cells.setdefault(key, []).append(str(measurement.cell))
    return "\n".join(
        f"{name} {status} in {len(where)} cells ({where[0]}{' ...' if where[1:] else ''}): {note}"
        for (name, status, note), where in cells.items()
    )


def _lines(measurements: Sequence[Measurement]) -> list[tuple[str, list[Measurement | None]]]:
    """Per group its cells by length; None where one was not measured."""
    found = {(m.cell.group, m.cell.length): m for m in measurements}
    groups = dict.fromkeys(m.cell.group for m in measurements)
    lengths = _lengths(measurements)
    return [(group, [found.get((group, length)) for length in lengths]) for group in groups]


def _lengths(measurements: Sequence[Measurement]) -> list[int]:
    return sorted({m.cell.length for m in measurements})


def _header(first: str, measurements: Sequence[Measurement]) -> str:
    return " | ".join((first, *map(length_name, _lengths(measurements))))


def _cells(line: Sequence[Measurement | None], text: Callable[[Measurement], str]) -> list[str]:
    return ["-" if measurement is None else text(measurement) for measurement in line]


def _rate(outcome: Outcome) -> str:
    return f"{outcome.tflops:.0f}" if outcome.status == OK else outcome.status


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
