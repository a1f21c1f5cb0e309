"""Prints the report of one plan."""

from __future__ import annotations

from fa4.profile.compute_loop import SCORES, ComputeLoop
from fa4.profile.report import BarrierView, Report, RoleView
from fa4.profile.summary import Softmax, Summary
from fa4.profile.table import table
from fa4.profile.text import loops_text, resources_text

SOFTMAX_HEADER = (
    "softmax loop per warp and 128 keys | instructions | executed | EX2 | emulated | FMA2+ADD2"
    " | max | select | F2FP | TMEM ld/st"
)
NO_SASS = "No SASS: nvdisasm was not found (wheel nvidia-cuda-nvdisasm, extra `sass`)."


def report_text(report: Report) -> str:
    """The whole report."""
    parts = [
        f"{report.kernel} for {report.arch}",
        resources_text(report.resources),
        f"dynamic smem {report.smem_bytes} bytes: "
        + ", ".join(f"{name} at {at}" for name, at in report.smem.items()),
        *report.notes,
        "",
        _roles(report),
        "",
        _barriers(report.barriers),
    ]
    if report.analysis is None:
        return "\n".join([*parts, "", NO_SASS])
    parts += ["", loops_text(report.analysis)]
    if report.summary:
        parts += ["", summary_text(report.summary)]
    if report.compute:
        parts += ["", compute_text(report.compute)]
    return "\n".join(parts)


def compute_text(loop: ComputeLoop) -> str:
    """The loop over scores of a backward kernel."""
    low, high = loop.executed
    return (
        f"Compute loop per warp and {SCORES} scores of a thread: {loop.instructions:.0f} "
        f"instructions, {low:.0f}..{high:.0f} executed; EX2 {loop.ex2:.0f}, "
        f"FMA2+ADD2+MUL2 {loop.packed:.0f}, F2FP {loop.f2fp:.0f}"
    )


def summary_text(summary: Summary) -> str:
    """Softmax split, MMA and correction counts, modelled cycles."""
    rows = [
        softmax_cells(name, row)
        for name, row in (("unmasked", summary.unmasked), ("masked", summary.masked))
        if row
    ]
    lines = [table(SOFTMAX_HEADER, rows)]
    if summary.mma_per_32 is not None:
        lines.append(
            f"MMA warp per 32 MMAs: {summary.mma_per_32:.0f} instructions, "
            f"{summary.mma_executed_per_32:.0f} executed"
        )
    if summary.correction is not None:
        lines.append(f"Correction loop, both query tiles: {summary.correction:.0f} instructions")
    if summary.step is not None:
        step = summary.step
        lines.append(
            "Modelled (not measured) cycles per sub-partition and 256x128 step: "
            f"MMA {step.mma}, MUFU {step.mufu}, issue {step.issue}, FMA {step.fma}, ALU {step.alu};"
            f" fullest: {step.bound}"
        )
    return "\n".join(lines)


def softmax_cells(name: str, row: Softmax) -> tuple[str, ...]:
    """Cells of one line under SOFTMAX_HEADER."""
    low, high = row.executed
    counts = (row.ex2, row.emulated, row.packed, row.max, row.select, row.f2fp)
    return (
        name,
        f"{row.instructions:.0f}",
        f"{low:.0f}..{high:.0f}",
        *(f"{count:.0f}" for count in counts),
        f"{row.tmem_loads:.0f}/{row.tmem_stores:.0f}",
    )


def _roles(report: Report) -> str:
    sass = {role.role: role for role in report.analysis.roles} if report.analysis else {}
    header = "role | warps | registers | honoured | PTX | SASS | largest classes"
    rows = []
    for view in report.roles:
        found = sass.pop(view.role, None)
        classes = found.classes if found else view.ptx
        rows.append(
            (
                view.role,
                _warps(view),
                view.registers,
                "yes" if view.honoured else "NO",
                sum(view.ptx.values()) or "-",
                found.instructions if found else "-",
                _largest(classes),
            )
        )
    for role in sass.values():
        rows.append((role.role, "", "", "", "", role.instructions, _largest(role.classes)))
    return table(header, rows)


def _warps(view: RoleView) -> str:
    first, end = view.warps
    return f"{first}-{end - 1}" if end - first > 1 else str(first)


def _largest(classes: dict[str, int]) -> str:
    return " ".join(f"{name}:{count}" for name, count in list(classes.items())[:8])


def _barriers(barriers: tuple[BarrierView, ...]) -> str:
    header = (
        "edge | producer | consumer | kind | stages | full at | arrivals | empty at | releases"
        " | means"
    )
    rows = [
        (
            view.edge,
            view.producer,
            view.consumer,
            view.kind,
            view.stages,
            view.full,
            view.arrivals,
            "-" if view.empty is None else view.empty,
            "-" if view.releases is None else view.releases,
            view.meaning,
        )
        for view in barriers
    ]
    return table(header, rows)
