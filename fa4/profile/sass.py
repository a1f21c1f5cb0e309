"""Reads the text that nvdisasm prints: instructions, their predicates, branch targets and lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^\s,]+)")
_LABEL = re.compile(r"^\s*(\.L\w+|\$\S+):")
_LINE = re.compile(r'//## File "([^"]+)", line (\d+)(?: inlined at "([^"]+)", line (\d+))?')
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?([^;]*);")
_PREDICATE = re.compile(r"^@(!?U?P\w+)\s+")
_TARGET = re.compile(r"`\(([^)]+)\)")
_ANNOTATION = re.compile(r"\s*\(\*.*\*\)")  # nvdisasm marks what ptxas spilled: (*"SpillRefill"*)
_BRANCH = re.compile(r"(BRA|BRX|JMP|BRXU|JMXU)\b")
_LEAVE = re.compile(r"(EXIT|RET)\b")
_CONDITION_OPERAND = re.compile(r"!?U?P\d")  # BRA.U UP4, `(.L_x_0)


@dataclass(frozen=True)
class Frame:
    """A source position; `path` as the compiler recorded it."""

    path: str
    line: int


@dataclass(frozen=True)
class Instruction:
    """One SASS instruction.

    address: byte offset in its function. opcode: with modifiers (`MUFU.EX2`). predicate: `!P0`,
    empty when unconditional. operands: the text behind the opcode. target: label of a branch.
    frames: source position, innermost first; more than one when the compiler kept the inline chain.
    ends: `branch` or `leave` when it ends a basic block; conditional: it may also fall through.
    """

    address: int
    opcode: str
    operands: str = ""
    predicate: str = ""
    target: str = ""
    frames: tuple[Frame, ...] = ()
    ends: str = ""
    conditional: bool = False

    def __str__(self) -> str:
        guard = f"@{self.predicate} " if self.predicate else ""
        return f"{self.address:#07x} {guard}{self.opcode} {self.operands}".rstrip()


@dataclass
class Function:
    """The code of one kernel (or device function): instructions and where labels point."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def parse_sass(text: str) -> list[Function]:
    """Functions of an nvdisasm listing (`nvdisasm -c`, with or without `-g`/`-gi`).

    Raises ValueError when the text holds no instruction: an empty count must not pass for a result.
    """
    functions: list[Function] = []
    frames: tuple[Frame, ...] = ()
    pending: list[Frame] = []
    for line in text.splitlines():
        if section := _SECTION.match(line):
            functions.append(Function(section.group(1)))
            frames, pending = (), []
        elif not functions:
            continue
        elif source := _LINE.search(line):
            pending = _extend(pending, source)
        elif label := _LABEL.match(line):
            functions[-1].labels[label.group(1)] = len(functions[-1].instructions)
        elif match := _INSTRUCTION.match(line):
            if pending:
                frames, pending = tuple(pending), []
            functions[-1].instructions.append(_instruction(match, frames))
    found = [function for function in functions if function.instructions]
    if not found:
        raise ValueError("no SASS instructions in the text: expected a listing of nvdisasm -c")
    return found


def _extend(chain: list[Frame], match: re.Match[str]) -> list[Frame]:
    """Appends the position of one `//## File` comment; a line `inlined at` names the next frame."""
    path, line, outer_path, outer_line = match.groups()
    frame = Frame(path, int(line))
    chain = chain if chain and chain[-1] == frame else [*chain, frame]
    return [*chain, Frame(outer_path, int(outer_line))] if outer_path else chain


def _instruction(match: re.Match[str], frames: tuple[Frame, ...]) -> Instruction:
    body = _ANNOTATION.sub("", match.group(2)).strip()
    predicate = ""
    if guard := _PREDICATE.match(body):
        predicate, body = guard.group(1), body[guard.end() :]
    opcode, _, operands = body.partition(" ")
    target = _TARGET.search(operands)
    ends = "branch" if _BRANCH.match(opcode) else "leave" if _LEAVE.match(opcode) else ""
    by_operand = ends == "branch" and _CONDITION_OPERAND.match(operands)
    return Instruction(
        address=int(match.group(1), 16),
        opcode=opcode,
        operands=operands.strip(),
        predicate=predicate,
        target=target.group(1) if target else "",
        frames=frames,
        ends=ends,
        conditional=bool(ends and (predicate or by_operand)),
    )
