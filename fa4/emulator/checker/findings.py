"""What the checker has found, in words."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from ..errors import EmulatorError
from ..ptx.syntax import Instruction

_SHOWN = 120  # characters of an instruction
_LISTED = 12  # findings of a report


@dataclass(frozen=True)
class Access:
    """One side of a finding: who did what where. `engine`: what carried it out, or ""."""

    instruction: Instruction
    role: str
    warp: int
    cta: tuple[int, int, int]
    engine: str = ""

    def __str__(self) -> str:
        text = textwrap.shorten(self.instruction.text, _SHOWN, placeholder=" ...")
        by = f"{self.engine} for " if self.engine else ""
        who = f"{by}{self.role} (warp {self.warp}, CTA {self.cta})"
        return f"{who}, PTX line {self.instruction.line}: {text}{_source(self.instruction)}"


def _source(instruction: Instruction) -> str:
    location = instruction.location
    if location is None:
        return ""
    at = f"\n      at {location}"
    return f"{at}, inlined at {location.inlined_at}" if location.inlined_at else at


@dataclass
class Finding:
    """A fault: what is wrong, the accesses it is about, what should have ordered them.

    `kind`: "race", "unwritten" (a read of memory that nobody wrote), "misuse" (of a barrier, or an
    operation still in flight at the end). `missing` says what would have ordered the two, `edge`
    names the edges of the kernel's table between the two roles. `count`: how often it was seen.
    """

    kind: str
    message: str
    first: Access | None
    second: Access
    missing: str = ""
    edge: str = ""
    count: int = 1

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.message}" + (f" ({self.count} x)" if self.count > 1 else "")]
        if self.first is not None:
            lines.append(f"    first   {self.first}")
        lines.append(f"    {'then   ' if self.first else 'by     '} {self.second}")
        if self.missing:
            lines.append(f"    missing {self.missing}")
        if self.edge:
            lines.append(f"    edge    {self.edge}")
        return "\n".join(lines)


class CheckError(EmulatorError):
    """A checked session has ended with findings; `findings` has them all, by kernel."""

    def __init__(self, findings: dict[str, list[Finding]]) -> None:
        self.findings = findings
        super().__init__("\n".join(_listed(name, found) for name, found in findings.items()))


def _listed(kernel: str, findings: list[Finding]) -> str:
    shown = "\n".join(str(finding) for finding in findings[:_LISTED])
    more = len(findings) - _LISTED
    rest = f"\nand {more} more, in the error's `findings`" if more > 0 else ""
    many = f"{len(findings)} findings" if len(findings) > 1 else "1 finding"
    return f"{many} in kernel {kernel}\n{shown}{rest}"
