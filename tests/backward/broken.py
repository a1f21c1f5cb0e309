"""Deterministic kernels without what puts their sums in an order."""

import re
from collections.abc import Callable
from unittest import mock

from fa4.emulator.program import Program


def replaced(pattern: str, replacement: str | Callable[[re.Match], str]) -> object:
    """A context in which all matches in the PTX of a kernel, of which there are some, differ."""
    original = Program.from_ptx

    def from_ptx(ptx: str, entry: str) -> Program:
        changed, count = re.subn(pattern, replacement, ptx)
        assert count
        return original(changed, entry)

    return mock.patch.object(Program, "from_ptx", staticmethod(from_ptx))


LOOK = r"ld\.acquire\.gpu\S*\s+(%r\d+), \[%rd\d+\];(?:\s*\.loc.*)*\s*"


def success(match: re.Match) -> str:
    """The comparison of the counter says that it is the right one."""
    return f"mov.pred {match[3]}, {int(match[2] == 'eq')};"


CHANGES = {
    "no wait for the turn": (LOOK + r"setp\.(eq|ne)\.\S+\s+(%p\d+), \1,.*;", success),
    "handed on before the sum": (
        r"cp\.async\.bulk\.wait_group\s+0;((?:\s*\.loc.*|[^;$]*;)*?\s*st\.release)",
        r"\1",
    ),
}
