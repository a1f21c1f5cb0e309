"""Plain-text tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMERIC = re.compile(r"[-+.\d/%x]*")


def table(header: str, rows: Sequence[Sequence[object]]) -> str:
    """Columns padded with spaces, numbers right-aligned; `header` is `first | second | ...`."""
    cells = [header.split(" | "), *([str(cell) for cell in row] for row in rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(_NUMERIC.fullmatch(cell) for cell in column[1:]) for column in columns]
    lines = [_line(row, widths, numeric) for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(row, widths, numeric, strict=True)
    ]
    return "  ".join(padded).rstrip()
