"""Constants of a kernel as full-width arrays: numpy is fastest when shapes agree."""

from __future__ import annotations

import numpy as np

DTYPES = {
    "p": "bool",
    "b": "U1",
    "sb": "I1",
    "h": "U2",
    "sh": "I2",
    "e": "F2",
    "u": "U4",
    "s": "I4",
    "f": "F4",
    "l": "U8",
    "sl": "I8",
    "d": "F8",
}
_RAW = {"b": "u1", "sb": "i1", "h": "u2", "sh": "i2", "e": "f2", "u": "u4", "s": "i4"}
_RAW |= {"f": "f4", "l": "u8", "sl": "i8", "d": "f8"}


class ConstantPool:
    """Every constant of a program, as one list of arrays per team width."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[bytes, str], int] = {}
        self._values: list[np.generic] = []
        self._tables: dict[int, list[np.ndarray]] = {}

    def index(self, value: int, kind: str) -> int:
        """Number of the constant with this bit pattern (or truth value)."""
        if kind == "p":
            return self._add(np.bool_(value != 0))
        dtype = np.dtype(_RAW[kind])
        bits = value & (1 << 8 * dtype.itemsize) - 1
        scalar = np.array([bits], f"u{dtype.itemsize}").view(dtype)[0]
        return self._add(scalar)

    def widened(self, name: str) -> str:
        """The float64 twin of a float32 constant `K[n]`."""
        return f"K[{self._add(np.float64(self._values[int(name[2:-1])]))}]"

    def _add(self, scalar: np.generic) -> int:
        key = (scalar.tobytes(), scalar.dtype.str)
        if key not in self._numbers:
            self._numbers[key] = len(self._values)
            self._values.append(scalar)
            for width, table in self._tables.items():
                table.append(np.full(width, scalar))
        return self._numbers[key]

    def table(self, width: int) -> list[np.ndarray]:
        """The constants at a width in lanes; the list grows as blocks are translated."""
        if width not in self._tables:
            self._tables[width] = [np.full(width, value) for value in self._values]
        return self._tables[width]
