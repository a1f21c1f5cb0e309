"""Warp-wide exchange: elect, shfl, vote, match, redux. Lanes of warp i are [32 i, 32 i + 32)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

U4 = np.uint32


def _rows(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, 32)


@lru_cache(maxsize=64)
def _first_lanes(width: int) -> np.ndarray:
    leaders = np.zeros(width, bool)
    leaders[::32] = True
    return leaders


@lru_cache(maxsize=64)
def _lanes(width: int) -> np.ndarray:
    return np.arange(width, dtype=np.int64) % 32


def elect(w, mask: np.ndarray | None) -> np.ndarray:
    """The lowest active lane of each warp, as a predicate."""
    if mask is None:
        return _first_lanes(w.n)
    leaders = np.zeros((w.n // 32, 32), bool)
    active = _rows(mask)
    leaders[np.arange(len(leaders)), active.argmax(1)] = True
    return leaders.reshape(-1) & mask


def lane_of_leader(leaders: np.ndarray) -> np.ndarray:
    """Lane number of each warp's leader, in all its lanes."""
    return np.repeat(_rows(leaders).argmax(1), 32).astype(U4)


def shuffle(mode: str, value, lane, clamp) -> tuple[np.ndarray, np.ndarray]:
    """shfl.sync: the value of another lane, and whether that lane was in range."""
    own = _lanes(len(value))
    operand, control = lane.astype(np.int64) & 31, clamp.astype(np.int64)
    segment, bound = (control >> 8) & 31, control & 31
    highest = (own & segment) | (bound & ~segment & 31)
    if mode == "idx":
        source = (own & segment) | (operand & ~segment & 31)
        valid = source <= highest
    elif mode == "bfly":
        source = own ^ operand
        valid = source <= highest
    elif mode == "down":
        source = own + operand
        valid = source <= highest
    else:
        source = own - operand
        valid = source >= highest
    source = np.where(valid, source, own)
    base = np.arange(len(value), dtype=np.int64) - own
    return value[base + source], valid


def vote(mode: str, predicate: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """vote.sync over the active lanes of each warp."""
    rows = _rows(predicate)
    active = np.ones_like(rows) if mask is None else _rows(mask)
    if mode == "ballot":
        bits = np.packbits(rows & active, axis=1, bitorder="little").view(U4)
        return np.repeat(bits.reshape(-1), 32)
    some, every = (rows & active).any(1), (rows | ~active).all(1)
    answer = {"any": some, "all": every, "uni": every | ~some}[mode]
    return np.repeat(answer, 32)


def match(mode: str, value: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """match.sync: the mask of active lanes with the same value."""
    result, same = np.zeros(len(value), U4), np.zeros(len(value), bool)
    bits = U4(1) << np.arange(32, dtype=U4)
    for start in range(0, len(value), 32):
        warp = slice(start, start + 32)
        equal = (value[warp][:, None] == value[warp][None]) & mask[warp][None]
        found = (equal * bits[None]).sum(1).astype(U4)
        if mode == "all":
            whole = (mask[warp] * bits).sum().astype(U4)
            same[warp] = found == whole
            found = np.where(found == whole, found, U4(0))
        result[warp] = found
    return result, same


_REDUCTIONS = {
    "add": (np.add, 0),
    "and": (np.bitwise_and, -1),
    "or": (np.bitwise_or, 0),
    "xor": (np.bitwise_xor, 0),
}


def redux(operation: str, value: np.ndarray, mask: np.ndarray | None, keep_nan: bool):
    """redux.sync over the active lanes of each warp."""
    if operation in ("min", "max"):
        floating = value.dtype.kind == "f"
        function = getattr(np, f"{operation}imum" if keep_nan or not floating else f"f{operation}")
        limits = np.finfo(value.dtype) if floating else np.iinfo(value.dtype)
        neutral = limits.max if operation == "min" else limits.min
        neutral = np.inf * (1 if operation == "min" else -1) if floating else neutral
    else:
        function, neutral = _REDUCTIONS[operation]
    if mask is not None:
        value = np.where(mask, value, np.array(neutral).astype(value.dtype))
    return np.repeat(function.reduce(_rows(value), axis=1).astype(value.dtype), 32)


def map_shared(w, address: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """mapa: the same offset in another CTA of the cluster."""
    return (address & U4(0xFFFFFF)) | (rank << U4(24))
