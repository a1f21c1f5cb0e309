"""Shared memory of one CTA: 1 KB of the system, static variables, then dynamic memory."""

from __future__ import annotations

import numpy as np

from .errors import AddressError, LaunchError

SYSTEM_BYTES = 1024
CAPACITY = 227 * 1024  # per CTA, static and dynamic together


class SharedMemory:
    """Bytes of a CTA as uint8/16/32/64 views and as rows of 16 bytes. Starts poisoned."""

    def __init__(self, static_bytes: int, align: int, dynamic_bytes: int) -> None:
        self.static_start = SYSTEM_BYTES
        self.dynamic_start = -(-(SYSTEM_BYTES + static_bytes) // align) * align
        self.end = self.dynamic_start + dynamic_bytes
        if self.end - SYSTEM_BYTES > CAPACITY:
            raise LaunchError(
                f"{self.end - SYSTEM_BYTES} bytes of shared memory; a CTA has at most {CAPACITY}"
            )
        size = -(-self.end // 16) * 16
        raw = np.full(size, 0xFF, np.uint8)
        self.views = {1: raw, 2: raw.view("u2"), 4: raw.view("u4"), 8: raw.view("u8")}
        self.rows = raw.view("u4").reshape(-1, 4)
        self.row_count = self.end // 16

    def check(self, offset: int, nbytes: int, what: str) -> None:
        """Raises AddressError unless [offset, offset + nbytes) is the CTA's own memory."""
        if offset >= SYSTEM_BYTES and offset + nbytes <= self.end:
            return
        raise AddressError(
            f"{what} of {nbytes} bytes at shared offset {offset:#x} is outside the CTA's memory "
            f"[{SYSTEM_BYTES:#x}, {self.end:#x}) (dynamic memory starts at "
            f"{self.dynamic_start:#x}); is the launch's shared memory size right?"
        )

    def write_word(self, offset: int, value: int) -> None:
        """Stores one 32-bit word."""
        self.check(offset, 4, "store")
        self.views[4][offset >> 2] = value
