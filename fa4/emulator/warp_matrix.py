"""Warp-level matrix instructions: ldmatrix, stmatrix, mma.sync.

Lane l holds row l / 4 of a fragment, and of that row the 32-bit word l % 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import AddressError
from .formats import decode_words

if TYPE_CHECKING:
    from .cta import Cta
    from .team import Team

U2, U4 = np.uint16, np.uint32


def _rows(w: Team, address: np.ndarray, start: int, count: int) -> tuple[Cta, np.ndarray]:
    """The CTA and the 16-byte row numbers that a warp's first lanes name."""
    places = address[start : start + count]
    cta = w.cta.peer(int(places[0]))
    offsets = places & U4(0xFFFFFF)
    if np.count_nonzero(offsets & U4(15)):
        raise AddressError("a row of ldmatrix or stmatrix is not 16-byte aligned")
    for offset in (int(offsets.min()), int(offsets.max())):
        cta.shared.check(offset, 16, "matrix row")
    return cta, offsets >> U4(4)


def _transposed(words: np.ndarray) -> np.ndarray:
    """8 x 8 matrices of 16-bit elements, (matrix, 8, 4) words, each transposed."""
    elements = words.view(U2).reshape(-1, 8, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(elements).view(U4)


def _starts(w: Team, mask: np.ndarray | None) -> list[int]:
    """First lanes of the active warps."""
    lanes = w.every if mask is None else mask
    return (32 * np.flatnonzero(lanes.reshape(-1, 32).any(1))).tolist()


def load_matrices(w: Team, address, count: int, transpose: bool, mask) -> np.ndarray:
    """ldmatrix m8n8.b16: (matrix, lane) words."""
    result = np.zeros((count, w.n), U4)
    for start in _starts(w, mask):
        cta, rows = _rows(w, address, start, 8 * count)
        if w.checker is not None:
            w.checker.memory.matrices(w, start, (cta.rank, rows), write=False)
        words = cta.shared.rows[rows].reshape(count, 8, 4)
        words = _transposed(words) if transpose else words
        result[:, start : start + 32] = words.reshape(count, 32)
    return result


def store_matrices(w: Team, address, values: tuple, transpose: bool, mask) -> None:
    """stmatrix m8n8.b16."""
    for start in _starts(w, mask):
        cta, rows = _rows(w, address, start, 8 * len(values))
        if w.checker is not None:
            w.checker.memory.matrices(w, start, (cta.rank, rows), write=True)
        words = np.array([value[start : start + 32] for value in values]).reshape(-1, 8, 4)
        words = _transposed(words) if transpose else words
        cta.shared.rows[rows] = words.reshape(-1, 4)
        w.cta.cluster.events += 1


def warp_mma(w: Team, formats: tuple[str, str], a: tuple, b: tuple, c: tuple) -> list[np.ndarray]:
    """mma.sync m16n8: D = A B + C with A (16, K) row-major, B (K, 8) column-major.

    Register r of A holds row g + 8 (r % 2), word t + 4 (r / 2); of B column g, word t + 4 r; of C
    row g + 8 (r / 2), column 2 t + r % 2; with g = lane / 4 and t = lane % 4.
    """
    warps = w.n // 32
    left = np.array(a).reshape(len(a) // 2, 2, warps, 8, 4)  # word group, row half, warp, g, t
    left = left.transpose(2, 1, 3, 0, 4).reshape(warps, 16, -1)
    right = np.array(b).reshape(len(b), warps, 8, 4).transpose(1, 2, 0, 3).reshape(warps, 8, -1)
    total = np.array(c).reshape(2, 2, warps, 8, 4)  # row half, column parity, warp, g, t
    total = total.transpose(2, 0, 3, 4, 1).reshape(warps, 16, 8)
    values = [
        decode_words(np.ascontiguousarray(m), f)
        for m, f in zip((left, right), formats, strict=True)
    ]
    product = values[0] @ values[1].transpose(0, 2, 1)
    result = (product.astype(total.dtype) + total).reshape(warps, 2, 8, 4, 2)
    result = result.transpose(1, 4, 0, 2, 3).reshape(4, w.n)
    return list(np.ascontiguousarray(result))
