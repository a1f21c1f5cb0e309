"""Kernels with one synchronising instruction removed or weakened, in their compiled PTX.

A checker, or a schedule, should notice each of them; one that nobody notices is redundant, or
shows what cannot be noticed.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# kind of mutant -> the instruction
KINDS = {
    "wait": r"mbarrier\.(?:try|test)_wait\S*",
    "expect": r"mbarrier\.arrive\.expect_tx\S*",
    "arrive": r"mbarrier\.arrive(?!\.expect)\S*",
    "commit": r"tcgen05\.commit\S*",
    "tmem fence": r"tcgen05\.fence\S*",
    "tmem wait": r"tcgen05\.wait\S*",
    "fence": r"(?:fence|membar)\.\S+",
    "named barrier": r"(?:bar|barrier)(?:\.cta)?\.(?:sync|arrive)(?!\.\w*cluster)\S*",
    "cluster barrier": r"barrier\.cluster\.\S+",
    "bulk group": r"cp\.async\.bulk\.(?:commit|wait)_group\S*",
    "copy group": r"cp\.async\.(?:commit|wait)_(?:group|all)\S*",
    "wgmma": r"wgmma\.(?:fence|commit_group|wait_group)\S*",
}
_STATEMENT = re.compile(
    r"^\s*(?:@!?[%\w]+\s+)?(?:"
    + "|".join(f"(?P<k{i}>{p})" for i, p in enumerate(KINDS.values()))
    + r")(?:\s|;)"
)
_SUFFIXES = re.compile(r"\.(?:cta_group|sync\.aligned|shared|parity|release|mbarrier::arrive)")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s*"([^"]*)")?')
_MARK = re.compile(r"// site (\S+ \S+ \d+) \.")
_MARKED = ("wait", "expect", "arrive", "commit", "tmem fence")


@dataclass(frozen=True)
class Site:
    """A synchronising instruction: its kind, where it stands, and which of those there it is.

    `where` is the mark that stands before it in the PTX (`kv_loaded wait 0`), else the file and
    the source line as text, so that it survives changes elsewhere. `line` counts PTX lines from 0.
    """

    kind: str
    where: str
    n: int
    opcode: str
    line: int

    def same_place(self, other: Site) -> bool:
        """Whether it is the same site, in the PTX of another kernel perhaps."""
        mine, theirs = (self.opcode, self.where, self.n), (other.opcode, other.where, other.n)
        return mine == theirs

    def __str__(self) -> str:
        return f"{self.opcode} at {self.where}" + (f" ({self.n})" if self.n else "")


def sites(ptx: str) -> list[Site]:
    """All synchronising instructions of a module, in order."""
    lines, found, counts = ptx.split("\n"), [], Counter()
    files = {
        int(m[1]): "/".join(filter(None, m.groups()[1:])) for m in map(_FILE.match, lines) if m
    }
    mark = place = ""
    for number, line in enumerate(lines):
        marked, located = _MARK.search(line), _LOC.match(line)
        if marked:
            mark = marked[1]
        elif located:
            place = _source(files.get(int(located[1]), "?"), int(located[2]))
        statement = _STATEMENT.match(line)
        if statement is None:
            continue
        kind = next(k for i, k in enumerate(KINDS) if statement[f"k{i}"])
        opcode = _SUFFIXES.split(statement[f"k{list(KINDS).index(kind)}"].rstrip(";"))[0]
        where = mark if mark and kind in _MARKED else place
        counts[opcode, where] += 1
        found.append(Site(kind, where, counts[opcode, where] - 1, opcode, number))
    return found


def _source(path: str, line: int) -> str:
    """`file.py: text of the line`, or the number where the file is not at hand."""
    text = linecache.getline(path, line).strip()
    return f"{Path(path).name}: {text.split('(')[0] if text else line}"


def without(ptx: str, site: Site) -> str:
    """The PTX with the instruction removed; a wait succeeds at once instead."""
    lines = ptx.split("\n")
    if site.kind == "wait":
        predicate = re.search(r"_wait\S*\s+(%?\w+),", lines[site.line])[1]
        lines[site.line] = f"mov.pred {predicate}, 1;"
    else:
        lines[site.line] = ""
    return "\n".join(lines)


def weakened(ptx: str, site: Site) -> str | None:
    """The PTX with a weaker instruction in its place, or None where there is none.

    A wait for groups may leave one more of them pending, bar.sync only arrives, a wait for bulk
    stores waits for their reads alone.
    """
    lines = ptx.split("\n")
    line = lines[site.line]
    if "bulk.wait_group" in line and ".read" not in line:
        new = line.replace("wait_group", "wait_group.read")
    elif "wait_group" in line:
        new = re.sub(r"(\d+)(\s*;)", lambda m: f"{int(m[1]) + 1}{m[2]}", line)
    elif re.search(r"\bbar(rier)?(\.cta)?\.sync", line) and "," in line:
        new = re.sub(r"\.sync", ".arrive", line)
    else:
        return None
    lines[site.line] = new
    return "\n".join(lines)
