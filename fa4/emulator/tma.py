"""TMA: tensor copies between global and shared memory, through swizzled boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .barriers import OFFSET, barrier_at
from .errors import AddressError, DescriptorError
from .memory import FIRST_ADDRESS, HOST, host_bytes
from .memory_ops import combine_arrays, reduction_dtype
from .tma_descriptor import TensorMap, box_units, decode

if TYPE_CHECKING:
    from .cta import Cta
    from .team import Team


def active_lanes(w: Team, mask: np.ndarray | None) -> list[int]:
    return list(range(w.n)) if mask is None else np.flatnonzero(mask).tolist()


def tensor_map(w: Team, address: int) -> TensorMap:
    """The tensor map in global memory or in the kernel's parameters."""
    if address % 64:
        raise DescriptorError(f"TMA descriptor at {address:#x} is not 64-byte aligned")
    w.cta.cluster.memory.check(address, 128, "TMA descriptor")
    return decode(host_bytes(address, 64).tobytes())


def _check_shared(cta: Cta, offset: int, tensor: TensorMap) -> None:
    atom = 128 if tensor.swizzle == 0 else 128 << tensor.swizzle
    if offset % 128:
        raise AddressError(f"TMA box at shared offset {offset:#x} is not 128-byte aligned")
    if offset % atom and tensor.box_bytes >= atom:
        raise AddressError(
            f"TMA box at shared offset {offset:#x} is not aligned to the {atom}-byte atom of its "
            f"{16 << tensor.swizzle}-byte swizzle"
        )
    cta.shared.check(offset, tensor.box_bytes, "TMA box")


def _window(w: Team, tensor: TensorMap, coordinates: tuple[int, ...]):
    """The strided global view of a box's in-bounds part and its slices, numpy order; or None."""
    if len(coordinates) != len(tensor.dims):
        raise DescriptorError(
            f"TMA instruction with {len(coordinates)} coordinates, "
            f"descriptor of rank {len(tensor.dims)}"
        )
    low, high = tensor.clip(coordinates)
    if any(h <= n for n, h in zip(low, high, strict=True)):
        return None
    extents = [h - n for n, h in zip(low, high, strict=True)]
    start = tensor.address + sum(n * s for n, s in zip(low, tensor.strides, strict=True))
    span = sum((e - 1) * s for e, s in zip(extents, tensor.strides, strict=True))
    w.cta.cluster.memory.check(start, span + tensor.element_bytes, "TMA box")
    size = tensor.element_bytes
    origin = HOST[size][(start - FIRST_ADDRESS) // size :]
    view = np.lib.stride_tricks.as_strided(origin, extents[::-1], tensor.strides[::-1])
    corner = [n - c for n, c in zip(low, coordinates, strict=True)]
    slices = tuple(slice(c, c + e) for c, e in zip(corner, extents, strict=True))[::-1]
    return view, slices


def _words(tensor: TensorMap, coordinates: tuple[int, ...]) -> np.ndarray | None:
    """Addresses of the words of a box's in-bounds part, for the checker."""
    low, high = tensor.clip(coordinates)
    if any(h <= n for n, h in zip(low, high, strict=True)):
        return None
    start = tensor.address + sum(n * s for n, s in zip(low, tensor.strides, strict=True))
    row = (high[0] - low[0]) * tensor.element_bytes
    places = np.arange(start & ~3, start + row, 4)
    for n, h, stride in zip(low[1:], high[1:], tensor.strides[1:], strict=True):
        places = ((np.arange(h - n) * stride)[:, None] + places).reshape(-1)
    return places


def _read_box(w: Team, tensor: TensorMap, coordinates: tuple[int, ...]) -> np.ndarray:
    """The box as rows of 16 bytes; what lies outside the tensor is zero."""
    window = _window(w, tensor, coordinates)
    shape, dtype = tensor.box[::-1], f"u{tensor.element_bytes}"
    if window is None:
        box = np.zeros(shape, dtype)
    elif window[0].shape == shape:
        box = np.ascontiguousarray(window[0])
    else:
        box = np.zeros(shape, dtype)
        box[window[1]] = window[0]
    return box.reshape(-1).view(np.uint32).reshape(-1, 4)


def _write_shared(cta: Cta, offset: int, tensor: TensorMap, rows: np.ndarray) -> None:
    cta.shared.rows[box_units(offset >> 4, tensor.box_bytes, tensor.swizzle)] = rows


def tma_load(w: Team, place, tensor, coordinates, barrier, multicast, pair: bool, mask) -> None:
    """cp.async.bulk.tensor to shared memory: one engine per box and destination CTA."""
    for lane in active_lanes(w, mask):
        decoded = tensor_map(w, int(tensor[lane]))
        corner = tuple(int(c[lane]) for c in coordinates)
        to, signal = int(place[lane]), int(barrier[lane])
        if multicast is None:
            _submit_load(w, lane, decoded, corner, (w.cta.peer(to), to & OFFSET), signal)
            continue
        targets = int(multicast[lane])
        for rank in range(len(w.cta.cluster.ctas)):
            if targets >> rank & 1:
                # With cta_group::2 the barrier may be that of the pair's other CTA.
                owner = (rank & ~1) | (signal >> 24 & 1) if pair else rank
                where = signal & OFFSET | owner << 24
                place = (w.cta.cluster.ctas[rank], to & OFFSET)
                _submit_load(w, lane, decoded, corner, place, where)


def _submit_load(w: Team, lane: int, tensor, corner, place: tuple[Cta, int], signal: int) -> None:
    cta, offset = place
    _check_shared(cta, offset, tensor)
    barrier = barrier_at(w.cta, signal)
    flight = None
    if w.checker is not None:
        flight = w.checker.copies.flight(w, lane, barrier)
        w.checker.copies.writes(flight, cta, offset, tensor.box_bytes)
        words = _words(tensor, corner)
        if words is not None:
            w.checker.globals.loads(flight, words)
    who = w.cta.who(w)

    def effect() -> None:
        rows = _read_box(w, tensor, corner)
        _write_shared(cta, offset, tensor, rows)
        if flight is not None:
            flight.land()
        barrier_at(w.cta, signal).complete(tensor.box_bytes, f"TMA of {who}")

    w.cta.cluster.engines.submit(None, effect, lambda: w.cta.origin(w))


def tma_store(w: Team, place, tensor, coordinates, operation: str | None, mask) -> None:
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor to global memory."""
    for lane in active_lanes(w, mask):
        decoded = tensor_map(w, int(tensor[lane]))
        corner = tuple(int(c[lane]) for c in coordinates)
        offset, cta = int(place[lane]) & OFFSET, w.cta.peer(int(place[lane]))
        _check_shared(cta, offset, decoded)
        _window(w, decoded, corner)
        _submit_store(w, lane, cta, offset, decoded, corner, operation)


def _submit_store(w: Team, lane: int, cta: Cta, offset, tensor, corner, operation) -> None:
    def read() -> np.ndarray:
        units = box_units(offset >> 4, tensor.box_bytes, tensor.swizzle)
        flat = cta.shared.rows[units].reshape(-1)
        return flat.view(f"u{tensor.element_bytes}").reshape(tensor.box[::-1])

    def write(box: np.ndarray) -> None:
        window = _window(w, tensor, corner)
        if window is None:
            return
        target, slices = window
        if operation is None:
            target[...] = box[slices]
            return
        dtype = reduction_dtype(tensor.element)
        source = np.ascontiguousarray(box[slices]).view(dtype)
        result = np.ascontiguousarray(target).view(dtype)
        combine_arrays(operation, tensor.element, result, source)
        target[...] = result.view(target.dtype)

    if w.checker is not None:
        source = (cta, offset, tensor.box_bytes)
        target = (_words(tensor, corner), operation is not None)
        w.checker.copies.store(w, lane, source, target)
    w.cta.submit_copy(w, lane, read, write)
