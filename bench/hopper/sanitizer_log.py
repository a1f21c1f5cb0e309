"""What compute-sanitizer printed: its findings, and which of them are known to be no errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

from fa4.tiles.bulk import load_floats
from fa4.warps.hopper.backward.pointwise import _pair

KNOWN = (
    "the load of the next LSE and delta behind reads of the last ones: bar.warp.sync and one "
    "lane's arrival on an mbarrier order them, which racecheck does not follow"
)
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_ACCESS = re.compile(r"(Read|Write) access at (\S.*)")
_PLACE = re.compile(r"([^\s/]+\.py):(\d+)")
_HAZARDS = re.compile(r"\[(\d+) hazards?\]")
# Lines that say how the program ended, not what the tool found
_NO_FINDING = re.compile(r"COMPUTE-SANITIZER|SUMMARY:|Target application returned")


@dataclass(frozen=True)
class Finding:
    """One report, of several lines."""

    text: str

    @property
    def hazards(self) -> int:
        """Of a race: how often; 0 for anything else."""
        return sum(map(int, _HAZARDS.findall(self.text)))

    @property
    def known(self) -> bool:
        """Whether it is the race that is none, see KNOWN."""
        accesses = [_ACCESS.search(line) for line in self.text.splitlines()]
        if None in accesses or "Race reported" not in self.text:
            return False
        found = [(access[1], _place(access[2])) for access in accesses]
        return {kind for kind, _ in found} == {"Read", "Write"} and all(
            _inside(place, load_floats if kind == "Write" else _pair) for kind, place in found
        )


@dataclass(frozen=True)
class Log:
    """All of one run of a tool. total: errors or hazards by its summary, None without one."""

    total: int | None
    findings: tuple[Finding, ...]

    @property
    def known(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.known)

    @property
    def errors(self) -> int:
        """What the summary counts beyond the known ones."""
        return (self.total or 0) - len(self.known)


def parse_log(text: str) -> Log:
    """Read what the tool printed between what the program printed."""
    reports: list[list[str]] = []
    for line in text.splitlines():
        said = line.removeprefix("=========")
        if said == line or not said.strip():
            continue
        if said.startswith("  ") and reports:
            reports[-1].append(said.strip())
        else:
            reports.append([said.strip()])
    totals = [int(number) for number in _SUMMARY.findall(text)]
    return Log(
        total=sum(totals) if totals else None,
        findings=tuple(
            Finding("\n".join(lines)) for lines in reports if not _NO_FINDING.search(lines[0])
        ),
    )


def _place(text: str) -> tuple[str, int] | None:
    """File and line."""
    found = _PLACE.search(text)
    return (found[1], int(found[2])) if found else None


def _inside(place: tuple[str, int] | None, function: Callable[..., object]) -> bool:
    if place is None:
        return False
    function = inspect.unwrap(function)
    lines, first = inspect.getsourcelines(function)
    file = inspect.getsourcefile(function).rpartition("/")[2]
    return place[0] == file and first <= place[1] < first + len(lines)
