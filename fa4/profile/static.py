"""Static analysis of one cubin: resources, instructions per role, loops and what they do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fa4.plan_blackwell import N_BLOCK
from fa4.profile.classes import emulated_exponentials, sass_histogram
from fa4.profile.disassembler import disassemble
from fa4.profile.elf import Resources, read_resources
from fa4.profile.flow import Flow, Loop
from fa4.profile.paths import Body, body
from fa4.profile.pipes import pipe_cycles
from fa4.profile.roles import block_roles, role_of_line
from fa4.profile.sass import Function, parse_sass

_SMALL = 24  # loops below this size are waits or trivial


@dataclass(frozen=True)
class Counts:
    """What the instructions of a piece of code do; `tmem` is (loads, stores)."""

    instructions: int
    ex2: int
    emulated: int
    packed: int  # FFMA2 + FADD2
    max: int  # FMNMX + FMNMX3
    select: int  # FSEL + SEL
    f2fp: int
    tmem: tuple[int, int]
    mma: int
    classes: dict[str, int]
    pipes: dict[str, int]  # cycles of one warp, see `pipes`


@dataclass(frozen=True)
class LoopReport:
    """One loop. kind: softmax, mma, correction, load, store, other, judged by its instructions.

    blocks: key blocks per iteration of a softmax loop (64 packed conversions each), else 1.
    counts: of one iteration without nested loops. shortest, longest: executed instructions of it.
    """

    kind: str
    role: str
    start: int
    depth: int
    blocks: int
    counts: Counts
    shortest: int
    longest: int


@dataclass(frozen=True)
class RoleReport:
    """SASS of one role: instructions, how many have a line in its file, classes."""

    role: str
    instructions: int
    own_lines: int
    classes: dict[str, int]


@dataclass(frozen=True)
class Analysis:
    """All that is known about one kernel of a cubin."""

    resources: Resources
    instructions: int
    roles: tuple[RoleReport, ...]
    loops: tuple[LoopReport, ...]

    def loops_of(self, kind: str) -> list[LoopReport]:
        """Loops of a kind, the one with the fewest instructions per iteration first."""
        found = [loop for loop in self.loops if loop.kind == kind]
        return sorted(found, key=lambda loop: loop.counts.instructions / loop.blocks)


def analyse(cubin: bytes, kernel: str | None = None) -> Analysis:
    """Analysis of the kernel whose name contains `kernel`; by default of the largest one.

    Works on any sm_90a or sm_100a cubin. Roles need line information and a `warps/` folder.
    Raises DisassemblerMissingError without nvdisasm, ValueError when there is no such kernel.
    """
    functions = [f for f in parse_sass(disassemble(cubin)) if kernel is None or kernel in f.name]
    if not functions:
        raise ValueError(f"no kernel with {kernel!r} in its name in this cubin")
    function = max(functions, key=lambda f: len(f.instructions))
    resources = {entry.kernel: entry for entry in read_resources(cubin)}[function.name]
    return _analyse(function, resources)


def _analyse(function: Function, resources: Resources) -> Analysis:
    flow = Flow(function)
    loops = flow.loops()
    roles = block_roles(flow)
    large = [loop for loop in loops if flow.size(loop.blocks) >= _SMALL]
    reports = [
        _loop_report(flow, loop, body(flow, loop, loops), roles[loop.header])
        for loop in large
        if not flow.is_retry(loop)
    ]
    return Analysis(
        resources=resources,
        instructions=len(function.instructions),
        roles=_role_reports(flow, roles),
        loops=tuple(reports),
    )


def count(flow: Flow, blocks: frozenset[int]) -> Counts:
    """Counts of the instructions in `blocks`."""
    code = flow.code(blocks)
    classes = sass_histogram(code)
    return Counts(
        instructions=len(code),
        ex2=classes["MUFU.EX2"],
        emulated=emulated_exponentials(code),
        packed=classes["FFMA2"] + classes["FADD2"],
        max=classes["FMNMX"] + classes["FMNMX3"],
        select=sum(instruction.opcode in ("FSEL", "SEL") for instruction in code),
        f2fp=classes["F2FP"],
        tmem=(classes["LDTM"], classes["STTM"]),
        mma=classes["MMA"],
        classes=dict(classes.most_common()),
        pipes=pipe_cycles(code),
    )


def _loop_report(flow: Flow, loop: Loop, own: Body, role: str) -> LoopReport:
    counts = count(flow, own.blocks)
    kind = _kind(counts)
    return LoopReport(
        kind=kind,
        role=role,
        start=flow.blocks[loop.header][0].address,
        depth=loop.depth,
        blocks=max(1, 2 * counts.f2fp // N_BLOCK) if kind == "softmax" else 1,
        counts=counts,
        shortest=own.shortest,
        longest=own.longest,
    )


def _kind(counts: Counts) -> str:
    """What a loop is for. A softmax body converts and stores what it exponentiated."""
    classes, (loads, stores) = counts.classes, counts.tmem
    if counts.ex2 + counts.emulated >= N_BLOCK // 2 and loads and stores:
        return "softmax"
    if counts.mma:
        return "mma"
    if loads and stores and classes.get("FMUL2", 0) >= 16:
        return "correction"
    if classes.get("TMA"):
        return "tma"
    return "other"


def _role_reports(flow: Flow, roles: list[str]) -> tuple[RoleReport, ...]:
    reports = []
    for role, size in _sizes(flow, roles).most_common():
        code = flow.code(block for block, owner in enumerate(roles) if owner == role)
        own = sum(role_of_line(instruction) == role for instruction in code)
        classes = dict(sass_histogram(code).most_common())
        reports.append(RoleReport(role, size, own, classes))
    return tuple(reports)


def _sizes(flow: Flow, roles: list[str]) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for block, role in enumerate(roles):
        sizes[role] += len(flow.blocks[block])
    return sizes
