"""Prints an analysis of a cubin."""

from __future__ import annotations

from fa4.profile.elf import Resources
from fa4.profile.static import Analysis, LoopReport
from fa4.profile.table import table

_LOOP_HEADER = (
    "loop at | kind | role | instructions | executed | EX2 | emulated | FMA2+ADD2 | max | select"
    " | F2FP | TMEM ld/st | MMA"
)


def resources_text(resources: Resources) -> str:
    """Registers, stack, spills, static shared memory and setmaxnreg of one kernel."""
    granted = ", ".join(map(str, resources.setmaxnreg)) or "none in the code"
    return (
        f"registers {resources.registers}   stack {resources.stack} bytes   "
        f"spill loads/stores {resources.local_loads}/{resources.local_stores}   "
        f"static smem {resources.shared} bytes   code {resources.code_bytes} bytes\n"
        f"setmaxnreg in SASS: {granted}"
    )


def loops_text(analysis: Analysis) -> str:
    """One line per loop: static count of the body and the split of the anchor table."""
    rows = [_loop_row(loop) for loop in analysis.loops]
    return table(_LOOP_HEADER, rows)


def roles_text(analysis: Analysis) -> str:
    """SASS instructions per role, by class."""
    rows = [
        (
            role.role,
            role.instructions,
            role.own_lines,
            " ".join(f"{name}:{n}" for name, n in list(role.classes.items())[:14]),
        )
        for role in analysis.roles
    ]
    return table("role | SASS | own lines | classes", rows)


def classes_text(loop: LoopReport) -> str:
    """Every class of a loop's body."""
    return " ".join(f"{name}:{n}" for name, n in loop.counts.classes.items())


def _loop_row(loop: LoopReport) -> tuple[object, ...]:
    counts = loop.counts
    return (
        f"{'  ' * loop.depth}{loop.start:#x}",
        loop.kind if loop.blocks == 1 else f"{loop.kind} x{loop.blocks}",
        loop.role,
        counts.instructions,
        f"{loop.shortest}..{loop.longest}",
        counts.ex2,
        counts.emulated,
        counts.packed,
        counts.max,
        counts.select,
        counts.f2fp,
        "/".join(map(str, counts.tmem)),
        counts.mma,
    )
