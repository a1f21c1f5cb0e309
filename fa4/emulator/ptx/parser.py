"""PTX module text to one Kernel: statements, nested scopes, labels, line info."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import PtxSyntaxError
from .module import find_entry, module_variables, parse_declaration, source_files
from .operands import parse_operand, split_operands
from .syntax import Instruction, Kernel, Location, Register, Symbol

_IDENTIFIER = r"[A-Za-z_$%][\w$]*"
_LABEL = re.compile(rf"({_IDENTIFIER})\s*:(?!:)")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(.*)")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)")
_GUARD = re.compile(rf"@(!?)({_IDENTIFIER})\s+")
_REGISTERS = re.compile(r"\.reg\s+(?:\.v([24])\s+)?\.(\w+)\s+(.*)$", re.S)
_RANGE = re.compile(r"(.*)<(\d+)>$")
_BLOCKING = (
    "mbarrier.try_wait",
    "mbarrier.test_wait",
    "bar.",
    "barrier.",
    "cp.async.wait",
    "cp.async.bulk.wait",
    "setmaxnreg",
    "tcgen05.alloc",
    "wgmma.wait_group",
    "ret",
    "exit",
    "trap",
)


@dataclass
class _Token:
    kind: str  # "{", "}", "label", "loc" or "statement"
    text: str
    line: int


def parse(ptx: str, entry: str) -> Kernel:
    """Parses kernel `entry` of a PTX module. Raises PtxSyntaxError with the PTX line."""
    text = _without_comments(ptx)
    header = find_entry(text, entry)
    variables, static_shared, shared_align = module_variables(text[: header.start])
    kernel = Kernel(
        entry,
        header.params,
        header.param_bytes,
        {},
        [],
        variables,
        static_shared,
        shared_align,
        0,
        header.max_registers,
        header.required_threads,
        header.min_ctas,
        header.target,
    )
    tokens = _tokens(text, header.body)
    _Body(kernel, tokens, source_files(text)).read()
    return kernel


def _without_comments(ptx: str) -> str:
    """Blanks comments, keeping every newline so that line numbers stay true."""
    ptx = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), ptx, flags=re.S)
    return re.sub(r"//[^\n]*", "", ptx)


def _tokens(text: str, start: int) -> list[_Token]:
    """Tokens of a function body, from just behind its opening brace to the matching one."""
    tokens, position, depth = [], start, 1
    line, counted = text.count("\n", 0, start) + 1, start
    skip = re.compile(r"[\s;]+")
    while depth:
        blank = skip.match(text, position)
        if blank:
            position = blank.end()
        if position >= len(text):
            raise PtxSyntaxError("the kernel's closing brace is missing")
        line += text.count("\n", counted, position)
        counted = position
        char = text[position]
        if char in "{}":
            depth += 1 if char == "{" else -1
            tokens.append(_Token(char, char, line))
            position += 1
            continue
        label = _LABEL.match(text, position)
        if label:
            tokens.append(_Token("label", label.group(1), line))
            position = label.end()
            continue
        if _LOC.match(text, position):
            end = text.index("\n", position)
            tokens.append(_Token("loc", text[position:end], line))
            position = end
            continue
        end = text.find(";", position)
        if end < 0:
            raise PtxSyntaxError(f"PTX line {line}: statement without an end")
        tokens.append(_Token("statement", text[position:end].strip(), line))
        position = end + 1
    return tokens


class _Body:
    """Walks the tokens of one kernel with a stack of register scopes."""

    def __init__(self, kernel: Kernel, tokens: list[_Token], files: dict[int, str]) -> None:
        self.kernel, self.tokens, self.files = kernel, tokens, files
        self.scopes: list[dict[str, str | tuple[str, ...]]] = []
        self.scope_count = 0
        self.labels: dict[str, int] = {}
        self.tables: dict[str, tuple[str, ...]] = {}
        self.location: Location | None = None
        self.skips = 0

    def read(self) -> None:
        self._open(0)
        for position, token in enumerate(self.tokens):
            try:
                self._token(position, token)
            except PtxSyntaxError as error:
                raise PtxSyntaxError(f"PTX line {token.line}: {error.message}") from None
        self._resolve_targets()

    def _token(self, position: int, token: _Token) -> None:
        if token.kind == "{":
            self._open(position + 1)
        elif token.kind == "}":
            self.scopes.pop()
        elif token.kind == "label":
            self.labels[self._label(token.text)] = len(self.kernel.instructions)
            self.last_label = self._label(token.text)
        elif token.kind == "loc":
            self._locate(token.text)
        elif token.text.startswith("."):
            self._directive(token.text)
        else:
            self._instruction(token)

    def _open(self, start: int) -> None:
        """Opens a scope: its names are declared before its first statement is read."""
        scope: dict[str, str | tuple[str, ...]] = {}
        suffix = f"@{self.scope_count}" if self.scopes else ""
        self.scope_count += 1
        depth = 0
        for token in self.tokens[start:]:
            if token.kind == "{":
                depth += 1
            elif token.kind == "}":
                if depth == 0:
                    break
                depth -= 1
            elif depth == 0 and token.kind == "label":
                scope[token.text + ":"] = token.text + suffix
            elif depth == 0 and token.text.startswith(".reg"):
                self._declare(token, scope, suffix)
        self.scopes.append(scope)

    def _declare(self, token: _Token, scope: dict, suffix: str) -> None:
        match = _REGISTERS.match(token.text)
        if not match:
            raise PtxSyntaxError(f"PTX line {token.line}: {token.text!r} is not understood")
        width, kind, items = match.groups()
        for item in items.split(","):
            name = item.strip()
            many = _RANGE.match(name)
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            if width:
                parts = [f"{each}.{axis}" for each in names for axis in "xyzw"[: int(width)]]
                for each in names:
                    axes = [part for part in parts if part.startswith(each + ".")]
                    scope[each] = tuple(part + suffix for part in axes)
                names = parts
            for each in names:
                scope[each] = each + suffix
                self.kernel.registers[each + suffix] = kind

    def _resolve(self, name: str) -> str | tuple[str, ...] | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def _label(self, name: str) -> str:
        return self._resolve(name + ":") or name

    def _locate(self, text: str) -> None:
        match = _LOC.match(text)
        if not match:
            return
        outer = _INLINED.search(match.group(3))
        site = None
        if outer:
            site = Location(self.files.get(int(outer[1]), "?"), int(outer[2]))
        self.location = Location(self.files.get(int(match[1]), "?"), int(match[2]), site)

    def _directive(self, text: str) -> None:
        if text.startswith(".branchtargets"):
            names = text.split(None, 1)[1].split(",")
            self.tables[self.last_label] = tuple(self._label(n.strip()) for n in names)
        elif text.startswith((".shared", ".local", ".param")):
            parse_declaration(text, self.kernel)

    def _instruction(self, token: _Token) -> None:
        text = " ".join(token.text.split())
        guard, rest = None, text
        match = _GUARD.match(text)
        if match:
            name = self._resolve(match.group(2))
            if name is None:
                raise PtxSyntaxError(f"predicate {match.group(2)!r} is not declared")
            guard, rest = Register(name, match.group(1) == "!"), text[match.end() :]
        opcode, _, arguments = rest.partition(" ")
        operands = [parse_operand(t, self._resolve) for t in split_operands(arguments.strip())]
        instruction = Instruction(
            opcode,
            tuple(opcode.split(".")),
            tuple(self._scoped(o) for o in operands),
            token.line,
            text,
            guard,
            self.location,
        )
        if guard and opcode.startswith(_BLOCKING):
            self._branch_around(instruction)
        self.kernel.instructions.append(instruction)
        if instruction.guard is None and guard:
            self.labels[f"@skip{self.skips}"] = len(self.kernel.instructions)

    def _scoped(self, operand: object) -> object:
        """A label operand under the unique name of its scope."""
        return Symbol(self._label(operand.name)) if isinstance(operand, Symbol) else operand

    def _branch_around(self, instruction: Instruction) -> None:
        """`@p blocking` as a branch around it, so that only whole groups of lanes ever block."""
        self.skips += 1
        guard = instruction.guard
        inverse = Register(guard.name, not guard.negated)
        branch = Instruction(
            "bra",
            ("bra",),
            (Symbol(f"@skip{self.skips}"),),
            instruction.line,
            instruction.text,
            inverse,
            instruction.location,
        )
        self.kernel.instructions.append(branch)
        instruction.guard = None

    def _resolve_targets(self) -> None:
        for instruction in self.kernel.instructions:
            if instruction.root == "bra":
                names = (instruction.operands[-1].name,)
            elif instruction.root == "brx":
                names = self.tables.get(instruction.operands[-1].name, ("?",))
            else:
                continue
            missing = [name for name in names if name not in self.labels]
            if missing:
                raise PtxSyntaxError(f"PTX line {instruction.line}: label {missing[0]} is unknown")
            instruction.targets = tuple(self.labels[name] for name in names)
