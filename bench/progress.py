"""One line that says how far a long run is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items; the line on stderr shows count, item and seconds."""
    start, live = time.monotonic(), sys.stderr.isatty()
    for number, item in enumerate(items, 1):
        text = f"{what} {number}/{len(items)}: {item} ({time.monotonic() - start:.0f} s)"
        print(f"\r\x1b[K{text}" if live else text, end="" if live else "\n", file=sys.stderr)
        sys.stderr.flush()
        yield item
    if live:
        print("\r\x1b[K", end="", file=sys.stderr)
