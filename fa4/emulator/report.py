"""The deadlock report: what each warp waits for, and who should have signalled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .barriers import Mbarrier
from .ptx.syntax import Instruction
from .waits import BarrierWait, MbarrierWait, PhaseEntry, PollWait

if TYPE_CHECKING:
    from .cta import Cta
    from .machine import Cluster
    from .team import Group, Team

_HEADER = ("CTA", "warp", "role", "waits for", "state", "should signal", "at")


def deadlock_report(cluster: Cluster, reason: str) -> str:
    """A table with one row per waiting set of warps."""
    rows = [_HEADER]
    for cta in cluster.ctas:
        for team in cta.teams:
            for group in team.groups:
                rows.extend(_rows(cta, team, group))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = [
        "  ".join(c.ljust(n) for c, n in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    name = cluster.machine.kernel.name
    return f"deadlock in kernel {name}: {reason}\n" + "\n".join(lines)


def _rows(cta: Cta, team: Team, group: Group) -> list[tuple[str, ...]]:
    place = _place(cta, group)
    if group.wait is None:
        if cta.translation.blocks[group.pc].collective:
            if any(other.wait is not None for other in team.groups):
                return []  # lanes that wait for the rest of their warp, which has its own row
            return [_row(cta, team, group.mask, "the other lanes of its warp", "", "", place)]
        return [_row(cta, team, group.mask, "runs (polling?)", "", "", place)]
    if isinstance(group.wait, MbarrierWait):
        return [
            _row(cta, team, e.lanes, str(e.barrier), *_mbarrier_state(e), place)
            for e in group.wait.entries
            if not e.over()
        ]
    if isinstance(group.wait, BarrierWait):
        return [
            _row(cta, team, e.lanes, str(e.barrier), *_named_state(cta, e.barrier), place)
            for e in group.wait.entries
            if not e.over()
        ]
    return [_row(cta, team, group.mask, group.wait.target(), "", "", place)]


def _row(cta: Cta, team: Team, lanes, what: str, state: str, signal: str, place: str):
    warps = team.warps
    if lanes is not None:
        warps = [w for i, w in enumerate(warps) if lanes[32 * i : 32 * i + 32].any()]
    numbers = [warp.index for warp in warps]
    text = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    roles = "/".join(dict.fromkeys(cta.role(number) for number in numbers))
    return (str(cta.position), text, roles, what, state, signal, place)


def _mbarrier_state(entry: PhaseEntry) -> tuple[str, str]:
    barrier: Mbarrier = entry.barrier
    state = f"phase {barrier.phase}: {barrier.pending} of {barrier.count} arrivals pending"
    if barrier.transactions:
        state += f", {barrier.transactions} bytes outstanding"
    label = barrier.cta.label(barrier.offset)
    if label and label.producers:
        return state, ", ".join(label.producers)
    known = ", ".join(barrier.signallers)
    return state, f"signalled so far by {known}" if known else "nobody has signalled it yet"


def _named_state(cta: Cta, barrier) -> tuple[str, str]:
    expected = barrier.expected or 0
    state = f"generation {barrier.generation}: {barrier.arrived} of {expected} threads"
    label = cta.labels.named_barriers.get(barrier.number)
    if label and label.producers:
        return state, ", ".join(label.producers)
    known = ", ".join(barrier.signallers)
    return state, f"arrivals so far: {known}"


def _place(cta: Cta, group: Group) -> str:
    """The instruction in which a group waits (it ends the block before), or stands."""
    block = cta.translation.blocks[group.pc].block
    here = group.wait is None or isinstance(group.wait, PollWait)
    index = block.start if here else block.start - 1
    instructions = cta.translation.kernel.instructions
    if not 0 <= index < len(instructions):
        return ""
    return f"{_source(instructions, index)}PTX line {instructions[index].line}"


def _source(instructions: list[Instruction], index: int) -> str:
    """The source line, with the last line of another file before it: a helper's user."""
    location = instructions[index].location
    if location is None:
        return ""
    text = f"{_short(location.file)}:{location.line}"
    if location.inlined_at is not None:
        return f"{text} in {_short(location.inlined_at.file)}:{location.inlined_at.line}, "
    for earlier in range(index - 1, max(index - 200, -1), -1):
        other = instructions[earlier].location
        if other is not None and other.line and other.file != location.file:
            return f"{text} behind {_short(other.file)}:{other.line}, "
    return f"{text}, "


def _short(path: str) -> str:
    """The last two parts of a path."""
    return "/".join(path.split("/")[-2:])
