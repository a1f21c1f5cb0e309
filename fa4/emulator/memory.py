"""Global memory: the host's own memory, with an allow-list of the ranges a launch may touch."""

from __future__ import annotations

import ctypes
from bisect import bisect_right

import numpy as np

from .errors import AddressError

FIRST_ADDRESS = 1 << 12  # numpy refuses a null base
_END_OF_USER_SPACE = (1 << 47) - FIRST_ADDRESS
_bytes = np.frombuffer(
    (ctypes.c_uint8 * (_END_OF_USER_SPACE - FIRST_ADDRESS)).from_address(FIRST_ADDRESS),
    dtype=np.uint8,
)
# The process's address space as arrays: element i of HOST[n] is at FIRST_ADDRESS + i * n.
# Nothing reads or writes them without a check against a GlobalMemory first.
HOST = {n: _bytes.view(f"u{n}") for n in (1, 2, 4, 8)}


class GlobalMemory:
    """Named ranges of host memory. Any access outside them is an AddressError."""

    def __init__(self) -> None:
        self._names: list[tuple[int, int, str]] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._last = (0, 0)

    def add(self, address: int, nbytes: int, name: str) -> None:
        """Allows [address, address + nbytes). Ranges may overlap."""
        if nbytes <= 0:
            return
        if address < FIRST_ADDRESS or address + nbytes > _END_OF_USER_SPACE:
            raise AddressError(f"range {name!r} at {address:#x} of {nbytes} bytes is no host range")
        self._names.append((address, address + nbytes, name))
        first = bisect_right(self._ends, address - 1)
        last = bisect_right(self._starts, address + nbytes)
        start = min([address, *self._starts[first:last]])
        end = max([address + nbytes, *self._ends[first:last]])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def bounds(self) -> tuple[list[int], list[int]]:
        """Starts and ends of the ranges, in order; those that touch are one."""
        return list(self._starts), list(self._ends)

    def with_ranges(self, ranges: list[tuple[int, int, str]]) -> GlobalMemory:
        """A copy that also allows these (address, nbytes, name)."""
        copy = GlobalMemory()
        for start, end, name in self._names:
            copy.add(start, end - start, name)
        for address, nbytes, name in ranges:
            copy.add(address, nbytes, name)
        return copy

    def check(self, address: int, nbytes: int, what: str) -> None:
        """Raises AddressError unless [address, address + nbytes) lies in one known range."""
        low, high = self._last
        if low <= address and address + nbytes <= high:
            return
        position = bisect_right(self._starts, address) - 1
        if position >= 0 and address + nbytes <= self._ends[position]:
            self._last = (self._starts[position], self._ends[position])
            return
        raise AddressError(
            f"{what} of {nbytes} bytes at global address {address:#x} is outside every known "
            f"range; {self._nearest(address)}"
        )

    def check_lanes(self, addresses: np.ndarray, nbytes: int, what: str) -> None:
        """The same for one address per lane (uint64), plus natural alignment."""
        if np.count_nonzero(addresses & np.uint64(nbytes - 1)):
            bad = int(addresses[(addresses & np.uint64(nbytes - 1)) != 0][0])
            raise AddressError(f"{what} of {nbytes} bytes at {bad:#x} is not {nbytes}-byte aligned")
        low, high = int(addresses.min()), int(addresses.max())
        first, last = self._last
        if first <= low and high + nbytes <= last:
            return
        for address in addresses.tolist():
            self.check(address, nbytes, what)

    def _nearest(self, address: int) -> str:
        if not self._names:
            return "no range is known"

        def gap(item: tuple[int, int, str]) -> int:
            start, end, _ = item
            return max(start - address, address - end + 1, 0)

        start, end, name = min(self._names, key=gap)
        if address < start:
            place = f"{start - address} bytes before"
        elif address >= end:
            place = f"{address - end} bytes behind"
        else:
            place = f"starting inside, {end - address} bytes before the end of"
        return f"it is {place} {name!r} [{start:#x}, {end:#x})"


def host_bytes(address: int, nbytes: int) -> np.ndarray:
    """A uint8 view of host memory (check the range first)."""
    return _bytes[address - FIRST_ADDRESS : address - FIRST_ADDRESS + nbytes]
