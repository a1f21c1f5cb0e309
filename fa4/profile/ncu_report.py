"""Nsight Compute's samples by warp role: its per-instruction table joined with the cubin's roles.

Written for the CSV of `ncu --page source --print-source sass` and `--page raw` (2025.3). Addresses
of the first are those of the running GPU; their distances are the offsets of the cubin.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa4.profile.classes import sass_class
from fa4.profile.flow import Flow
from fa4.profile.pipes import pipe_cycles
from fa4.profile.roles import block_roles
from fa4.profile.sass import Function, Instruction
from fa4.profile.table import table

_PREDICATE = re.compile(r"^@!?U?P\w+\s+")
_REASON = "smsp__pcsamp_warps_issue_stalled_"

# Pipe, utilisation metric of the raw page. Those that a report lacks are left out.
PIPES = (
    ("tensor", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"),
    ("mufu", "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"),
    ("fma", "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"),
    ("alu", "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active"),
    ("lsu", "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active"),
    ("tma", "sm__pipe_tma_cycles_active.avg.pct_of_peak_sustained_active"),
    ("issue", "smsp__issue_active.avg.pct_of_peak_sustained_active"),
)
_CLASS_PIPES = {"MMA": "tensor", "TMA": "tma", "LDS/STS": "lsu", "GLOBAL": "lsu", "LOCAL": "lsu"}


class ReportMismatchError(ValueError):
    """The report's code is not that of the cubin, or is no such report."""


@dataclass(frozen=True)
class Sampled:
    """One instruction of a report. stalls: samples by reason; executed: by all warps."""

    address: int
    opcode: str
    samples: int
    executed: int
    stalls: Mapping[str, int]


@dataclass(frozen=True)
class RoleSamples:
    """One role. pipes: its share of the cycles that instructions occupy each pipe, 0 to 1."""

    role: str
    samples: int
    executed: int
    stalls: Mapping[str, int]
    pipes: Mapping[str, float]


@dataclass(frozen=True)
class NcuReport:
    """One kernel: roles with the most samples first; pipes: utilisation in percent of the peak."""

    kernel: str
    microseconds: float | None
    roles: tuple[RoleSamples, ...]
    pipes: Mapping[str, float]


def parse_source(text: str) -> tuple[str, list[Sampled]]:
    """Kernel name and instructions of the first kernel of a source page. ReportMismatchError."""
    kernel, header, found = "", None, []
    for row in csv.reader(text.splitlines()):
        if row[:1] == ["Kernel Name"]:
            if found:
                break
            kernel = row[1]
        elif row[:2] == ["Address", "Source"]:
            header = row
        elif header and row and row[0].startswith("0x"):
            found.append(_sampled(dict(zip(header, row, strict=True))))
    if not found:
        raise ReportMismatchError(
            "no sampled instructions: expected the CSV of `ncu --page source --print-source sass`, "
            "of a report with the section SourceCounters"
        )
    return kernel, found


def parse_raw(text: str) -> list[dict[str, float]]:
    """Per kernel of a raw page its metrics that are numbers. ReportMismatchError."""
    rows = list(csv.reader(text.splitlines()))
    start = next((i for i, row in enumerate(rows) if row[:1] == ["ID"]), None)
    if start is None or len(rows) < start + 3:
        raise ReportMismatchError("no metrics: expected the CSV of `ncu --page raw`")
    units = 1  # their row stands between the names and the values
    return [_numbers(rows[start], row) for row in rows[start + 1 + units :]]


def _numbers(header: Sequence[str], row: Sequence[str]) -> dict[str, float]:
    metrics = {}
    for name, value in zip(header, row, strict=True):
        try:
            metrics[name] = float(value.replace(",", ""))
        except ValueError:
            continue
    return metrics


def by_role(function: Function, source: str, raw: str) -> NcuReport:
    """Joins a report with the disassembled kernel that it is of. Raises ReportMismatchError."""
    kernel, sampled = parse_source(source)
    metrics = parse_raw(raw)[0]
    _check_same_code(function, sampled)
    roles = _roles_by_address(function)
    unlisted = _unlisted_reason(sampled, metrics)
    cycles: dict[str, Counter[str]] = {}
    samples, executed = Counter(), Counter()
    stalls: dict[str, Counter[str]] = {}
    for instruction, row in zip(function.instructions, sampled, strict=True):
        role = roles[instruction.address]
        samples[role] += row.samples
        executed[role] += row.executed
        reasons = stalls.setdefault(role, Counter())
        reasons.update(row.stalls)
        reasons[unlisted] += row.samples - sum(row.stalls.values())
        for pipe, each in _occupied(instruction).items():
            cycles.setdefault(pipe, Counter())[role] += each * row.executed
    found = [
        RoleSamples(
            role=role,
            samples=samples[role],
            executed=executed[role],
            stalls=dict((+stalls[role]).most_common()),
            pipes={pipe: by[role] / max(by.total(), 1) for pipe, by in cycles.items()},
        )
        for role, _ in samples.most_common()
    ]
    duration = metrics.get("gpu__time_duration.sum")
    pipes = {pipe: metrics[name] for pipe, name in PIPES if name in metrics}
    return NcuReport(kernel, duration, tuple(found), pipes)


def report_text(report: NcuReport, reasons: int = 6) -> str:
    """Two tables: samples and stalls of each role, then who uses which pipe."""
    every = max(sum(role.samples for role in report.roles), 1)
    instructions = max(sum(role.executed for role in report.roles), 1)
    rows = [
        (
            role.role,
            role.samples,
            f"{100 * role.samples / every:.1f}%",
            role.executed,
            f"{100 * role.executed / instructions:.1f}%",
            _reasons(role, reasons),
        )
        for role in report.roles
    ]
    took = f", {report.microseconds:.1f} us" if report.microseconds is not None else ""
    names = [role.role for role in report.roles]
    return "\n".join(
        [
            f"{report.kernel}: sampled by Nsight Compute{took}",
            "",
            table(
                "role | samples | of all | warp instructions | of all | stalled by (% of samples)",
                rows,
            ),
            "",
            "Pipes in % of the peak while SMs are active; the whole as measured, split by the "
            "cycles that each role's executed instructions occupy.",
            table(" | ".join(["pipe", "all", *names]), _pipe_rows(report)),
        ]
    )


def _pipe_rows(report: NcuReport) -> list[Sequence[object]]:
    return [
        (pipe, f"{whole:.1f}", *(f"{whole * role.pipes.get(pipe, 0):.1f}" for role in report.roles))
        for pipe, whole in report.pipes.items()
    ]


def _reasons(role: RoleSamples, count: int) -> str:
    return "  ".join(
        f"{reason} {100 * number / max(role.samples, 1):.0f}"
        for reason, number in list(role.stalls.items())[:count]
    )


def _sampled(row: dict[str, str]) -> Sampled:
    opcode = _PREDICATE.sub("", row["Source"].strip()).split()[0]
    return Sampled(
        address=int(row["Address"], 16),
        opcode=opcode.rstrip(",;"),
        samples=int(row["# Samples"]),
        executed=int(row["Instructions Executed"]),
        stalls={
            name.removeprefix("stall_"): int(value)
            for name, value in row.items()
            if name.startswith("stall_") and not name.endswith("(Not Issued)")
        },
    )


def _check_same_code(function: Function, sampled: list[Sampled]) -> None:
    base = sampled[0].address
    here = [(ins.address, ins.opcode) for ins in function.instructions]
    there = [(row.address - base, row.opcode) for row in sampled]
    if here != there:
        at = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
        where = f"{len(there)} instructions instead of {len(here)}"
        if at is not None:
            where = f"{there[at][1]} instead of {here[at][1]} at offset {here[at][0]:#x}"
        raise ReportMismatchError(
            f"the report's code is not that of {function.name} ({where}): profile again with the "
            "same sources and versions"
        )


def _roles_by_address(function: Function) -> dict[int, str]:
    flow = Flow(function)
    return {
        instruction.address: role
        for role, block in zip(block_roles(flow), flow.blocks, strict=True)
        for instruction in block
    }


def _unlisted_reason(sampled: list[Sampled], metrics: Mapping[str, float]) -> str:
    """The source page has no column for one reason (warpgroup_arrive); the raw page names it.

    There reasons are spelled out: `long_scoreboard` for the column `long_sb`.
    """
    listed = tuple(name.replace("_sb", "_scoreboard") for name in sampled[0].stalls)
    reasons = (name.removeprefix(_REASON) for name in metrics if name.startswith(_REASON))
    missing = [
        reason
        for reason in reasons
        if not reason.endswith("_not_issued") and not reason.startswith(listed)
    ]
    return missing[0] if len(missing) == 1 else "other"


def _occupied(instruction: Instruction) -> dict[str, int]:
    """Cycles on each pipe; 1 where only the share matters, since all instructions are alike."""
    cycles = pipe_cycles([instruction])
    if pipe := _CLASS_PIPES.get(sass_class(instruction)):
        cycles[pipe] = 1
    return cycles
