"""Reads PTX text into the same instructions and functions as SASS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from fa4.profile.sass import Frame, Function, Instruction

_ENTRY = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)*\.(?:entry|func)\b[^\n]*?([\w$]+)\s*\(", re.M)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.M)
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*?inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
_LABEL = re.compile(r"([\w$]+):(?!:)\s*")
_GUARD = re.compile(r"@(!?%?\w+)\s+")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)

_Position = tuple[str, int, int]  # file, line, column


def parse_ptx(text: str, entry: str | None = None) -> Function:
    """The kernel of a PTX module whose name contains `entry`; by default the first one.

    Raises ValueError when there is none. Labels are unique per scope in PTX, so those of nested
    scopes (inline assembly) get the scope's number as a suffix.
    """
    files = dict(_FILE.findall(text))
    for match in _ENTRY.finditer(text):
        name = match.group(1)
        if entry is None or entry in name:
            body = text[text.index("{", text.index(")", match.end())) :]
            return _Body(name, files).read(_COMMENT.sub("", body))
    raise ValueError(f"no kernel with {entry!r} in its name in this PTX")


class _Body:
    """State while the statements of one kernel are read."""

    def __init__(self, name: str, files: dict[str, str]) -> None:
        self.function = Function(name)
        self.files = files
        self.frames: tuple[Frame, ...] = ()
        self.chains: dict[_Position, tuple[Frame, ...]] = {}
        self.scopes: list[int] = []
        self.opened = 0

    def read(self, text: str) -> Function:
        """Consume the body up to the brace that closes it."""
        for statement in _statements(text):
            if statement == "{":
                self.opened += 1
                self.scopes.append(self.opened)
            elif statement == "}":
                self.scopes.pop()
                if not self.scopes:
                    break
            elif statement.startswith(".loc"):
                self._locate(statement)
            elif statement.endswith(":"):
                self._label(statement[:-1])
            elif not statement.startswith("."):
                self.function.instructions.append(self._instruction(statement))
        return self._resolved()

    def _locate(self, statement: str) -> None:
        match = _LOC.match(statement)
        if match is None:
            raise ValueError(f"cannot read {statement!r}")
        here, outer = match.groups()[:3], match.groups()[3:]
        frame = Frame(self.files.get(here[0], f"file {here[0]}"), int(here[1]))
        rest = self.chains.get(outer) if outer[0] else ()
        if rest is None:
            rest = (Frame(self.files.get(outer[0], f"file {outer[0]}"), int(outer[1])),)
        self.frames = (frame, *rest)
        self.chains[here] = self.frames

    def _label(self, name: str) -> None:
        self.function.labels[self._scoped(name)] = len(self.function.instructions)

    def _instruction(self, statement: str) -> Instruction:
        predicate = ""
        if guard := _GUARD.match(statement):
            predicate, statement = guard.group(1), statement[guard.end() :]
        opcode, _, operands = statement.partition(" ")
        ends = "branch" if opcode.startswith("bra") else ""
        ends = "leave" if opcode in ("ret", "exit", "trap") else ends
        return Instruction(
            address=len(self.function.instructions),
            opcode=opcode,
            operands=operands.strip(),
            predicate=predicate,
            target=self._scoped(operands.strip()) if ends == "branch" else "",
            frames=self.frames,
            ends=ends,
            conditional=bool(ends and predicate),
        )

    def _scoped(self, label: str) -> str:
        return f"{label}@{'.'.join(map(str, self.scopes))}"

    def _resolved(self) -> Function:
        """Branch targets name the innermost enclosing scope that has the label."""
        function, labels = self.function, self.function.labels
        for i, instruction in enumerate(function.instructions):
            target = instruction.target
            while target and target not in labels and "." in target.partition("@")[2]:
                target = target.rpartition(".")[0]
            if target != instruction.target:
                function.instructions[i] = replace(instruction, target=target)
        return function


def _statements(text: str) -> Iterator[str]:
    """Statements in order: `{`, `}`, `.loc ...`, `label:`, and instructions without semicolon.

    A brace inside a statement is a vector operand.
    """
    at = 0
    while at < len(text):
        rest = text[at : at + 1]
        if rest.isspace() or rest == ";":
            at += 1
        elif rest in "{}":
            yield rest
            at += 1
        elif text.startswith(".loc", at) or text.startswith(".pragma", at):
            end = text.find("\n", at)
            yield " ".join(text[at:end].split())
            at = end
        elif label := _LABEL.match(text, at):
            yield f"{label.group(1)}:"
            at = label.end()
        else:
            end = text.find(";", at)
            if end < 0:
                return
            yield " ".join(text[at:end].split())
            at = end + 1
