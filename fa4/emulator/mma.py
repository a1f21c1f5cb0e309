"""tcgen05.mma, cp and commit: the tensor core, which works through its queue in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .barriers import OFFSET, barrier_at
from .errors import TensorMemoryError, UnsupportedInstruction
from .formats import decode_words, from_f16
from .matrix_descriptors import MmaShape, decode_instruction, operand_units, operand_values
from .tensor_memory import LANES, cta_pair
from .tma import active_lanes

if TYPE_CHECKING:
    from .cta import Cta
    from .team import Team

F2, F4, U2, U4 = np.float16, np.float32, np.uint16, np.uint32
_HALF_LANES = np.array([row // 16 * 32 + row % 16 for row in range(64)])  # data path layout F


def _core(w: Team, pair: bool) -> tuple:
    """The queue key: a CTA pair shares one."""
    rank = w.cta.rank & ~1 if pair else w.cta.rank
    return ("tensor core", rank)


def tensor_mma(w: Team, form: tuple[str, bool, bool], d, a, b, descriptor, control, mask) -> None:
    """tcgen05.mma: checks its operands, then hands the product to the tensor core.

    `form`: kind, whether a CTA pair works together, whether A is in tensor memory.
    `control`: the predicate that keeps D, and the disable-output-lane words or None.
    """
    kind, pair, _ = form
    accumulate, off = control
    for lane in active_lanes(w, mask):
        shape = decode_instruction(kind, int(descriptor[lane]), pair)
        operands = (int(d[lane]), int(a[lane]), int(b[lane]))
        disabled = [int(word[lane]) for word in off] if off else []
        job = Product(w.cta, shape, form, operands, bool(accumulate[lane]), disabled)
        job.check()
        if w.checker is not None:
            w.checker.tensor.mma(w, lane, job)
        w.cta.cluster.mmas += 1
        w.cta.cluster.engines.submit(_core(w, pair), job.run, lambda: w.cta.origin(w))


class Product:
    """One D = A B (+ D) with its operands located."""

    def __init__(
        self, cta: Cta, shape: MmaShape, form: tuple, operands: tuple, accumulate: bool, off: list
    ) -> None:
        self.cta, self.shape, self.accumulate = cta, shape, accumulate
        _, self.pair, self.a_tensor = form
        self.d, self.a, self.b = operands
        self.off = off if any(off) else None
        self.ctas = cta_pair(cta) if self.pair else [cta]
        self.rows = shape.m // len(self.ctas)

    @property
    def d_columns(self) -> int:
        """Columns of D in each CTA."""
        folded = self.pair and self.rows == 64
        return self.shape.n // 2 if folded else self.shape.n

    def shared_units(self, cta: Cta) -> list[np.ndarray]:
        """Places of the 16-byte units of the operands in a CTA's shared memory."""
        shape, limit = self.shape, cta.shared.row_count
        size, each = shape.element_bytes, shape.n // len(self.ctas)
        units = [operand_units(self.b, each, 2, shape.b_mn_major, size, limit)]
        if not self.a_tensor:
            units.append(operand_units(self.a, self.rows, 2, shape.a_mn_major, size, limit))
        return units

    def check(self) -> None:
        column = self.d & 0xFFFF
        for cta in self.ctas:
            cta.tensor.check(column, self.d_columns, "tcgen05.mma accumulator")
            if self.a_tensor:
                cta.tensor.check(self.a & 0xFFFF, 8, "tcgen05.mma operand A")
        if self.d >> 16 or (self.a_tensor and self.a >> 16):
            raise TensorMemoryError(
                f"tcgen05.mma at tensor-memory address {self.d:#x}: lane must be 0"
            )
        if self.a_tensor and self.rows == 64:
            raise UnsupportedInstruction("operand A in tensor memory with 64 rows")

    def run(self) -> None:
        shape = self.shape
        each = shape.n // len(self.ctas)
        parts = [
            _operand(cta, self.b, each, shape.b_mn_major, shape, shape.b_format)
            for cta in self.ctas
        ]
        b = parts[0] if len(parts) == 1 else np.concatenate(parts)
        for position, cta in enumerate(self.ctas):
            product = b @ self._left(cta).T  # (N, rows): tensor memory is column by lane
            if shape.negate:
                product = -product
            self._accumulate(cta, product, position)
        self.cta.cluster.events += 1

    def _left(self, cta: Cta) -> np.ndarray:
        """Operand A of one CTA as float32 (rows, K)."""
        shape = self.shape
        if not self.a_tensor:
            return _operand(cta, self.a, self.rows, shape.a_mn_major, shape, shape.a_format)
        column = self.a & 0xFFFF
        words = np.ascontiguousarray(cta.tensor.words[column : column + 8].T)
        return decode_words(words, shape.a_format)

    def _accumulate(self, cta: Cta, product: np.ndarray, position: int) -> None:
        column, n = self.d & 0xFFFF, self.shape.n
        lanes: slice | np.ndarray = slice(0, LANES)
        if self.rows == 64 and self.pair:  # layout B: the upper half of N in lanes 64-127
            product = np.concatenate((product[: n // 2], product[n // 2 :]), axis=1)
            n //= 2
        elif self.rows == 64:
            lanes = _HALF_LANES
        if self.off is not None:
            lanes, product = self._enabled(lanes, product, position)
        _store(cta.tensor, self.shape.result, slice(column, column + n), lanes, product, self)

    def _enabled(self, lanes, product: np.ndarray, position: int):
        """Leaves out the lanes that the disable-output-lane vector names."""
        words = np.array(self.off[4 * position : 4 * position + 4], U4)
        disabled = np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)
        numbers = np.arange(LANES)[lanes]
        keep = ~disabled[numbers]
        return numbers[keep], product[:, keep]


def _store(tensor, result: str, columns: slice, lanes, product: np.ndarray, job) -> None:
    if result == "f32":
        memory = tensor.floats
        if isinstance(lanes, slice) and job.accumulate:
            target = memory[columns]
            np.add(target, product, out=target)
            return
        memory[columns, lanes] = memory[columns, lanes] + product if job.accumulate else product
        return
    memory = tensor.words
    old = memory[columns, lanes]
    if result == "s32":
        value = product.astype(np.int32).view(U4)
        memory[columns, lanes] = old + value if job.accumulate else value
        return
    total = product + from_f16(old.astype(U2)) if job.accumulate else product
    memory[columns, lanes] = total.astype(F2).view(U2)


def _operand(cta: Cta, descriptor: int, rows: int, mn_major: bool, shape: MmaShape, fmt: str):
    """An operand from shared memory as float32 (rows, K); K covers 32 bytes."""
    memory = cta.shared
    size = shape.element_bytes
    units = operand_units(descriptor, rows, 2, mn_major, size, memory.row_count)
    return operand_values(memory.rows[units], mn_major, fmt)


def tensor_commit(w: Team, place, multicast, pair: bool, mask) -> None:
    """tcgen05.commit: arrives on mbarriers when all earlier work of the core is done."""
    for lane in active_lanes(w, mask):
        signal = int(place[lane])
        signals = [signal]
        if multicast is not None:
            targets = int(multicast[lane])
            signals = [
                signal & OFFSET | rank << 24
                for rank in range(len(w.cta.cluster.ctas))
                if targets >> rank & 1
            ]
        _submit_commit(w, lane, signals, pair)


def _submit_commit(w: Team, lane: int, signals: list[int], pair: bool) -> None:
    cta, who = w.cta, f"tcgen05.commit of {w.cta.who(w)}"
    barriers = [barrier_at(cta, signal) for signal in signals]
    flights = [] if w.checker is None else w.checker.tensor.commit(w, lane, barriers)

    def effect() -> None:
        for flight in flights:
            flight.land()
        for signal in signals:
            barrier_at(cta, signal).arrive(1, who)

    cta.cluster.engines.submit(_core(w, pair), effect, lambda: cta.origin(w))


# ---- tcgen05.cp

_COPIES = {  # (shape, multicast) to (rows, units of 16 bytes, first lanes of each 32-row piece)
    ("128x256b", None): (128, 2, ((0,), (32,), (64,), (96,))),
    ("128x128b", None): (128, 1, ((0,), (32,), (64,), (96,))),
    ("64x128b", "warpx2::02_13"): (64, 1, ((0, 64), (32, 96))),
    ("64x128b", "warpx2::01_23"): (64, 1, ((0, 32), (64, 96))),
    ("32x128b", "warpx4"): (32, 1, ((0, 32, 64, 96),)),
}


def tensor_copy(w: Team, shape: str, multicast: str | None, pair: bool, place, descriptor, mask):
    """tcgen05.cp: rows of shared memory into the lanes of tensor memory."""
    if (shape, multicast) not in _COPIES:
        raise UnsupportedInstruction(f"tcgen05.cp of shape {shape} {multicast or ''}")
    for lane in active_lanes(w, mask):
        for cta in cta_pair(w.cta) if pair else [w.cta]:
            to, source = int(place[lane]), int(descriptor[lane])
            _submit_copy(w, (lane, cta), (shape, multicast), to, source, pair)


def _submit_copy(
    w: Team, where: tuple[int, Cta], form: tuple, place: int, descriptor: int, pair: bool
) -> None:
    (lane, cta), (rows, units, pieces) = where, _COPIES[form]
    column = place & 0xFFFF
    cta.tensor.check(column, 4 * units, "tcgen05.cp")
    index = operand_units(descriptor, rows, units, False, 1, cta.shared.row_count)
    if w.checker is not None:
        cells = (slice(column, column + 4 * units), slice(None))
        w.checker.tensor.copy(w, lane, cta, index, cells)

    def effect() -> None:
        words = cta.shared.rows[index].reshape(rows, -1).T
        for piece, starts in enumerate(pieces):
            for start in starts:
                part = words[:, 32 * piece : 32 * piece + 32]
                cta.tensor.words[column : column + 4 * units, start : start + 32] = part
        cta.cluster.events += 1

    w.cta.cluster.engines.submit(_core(w, pair), effect, lambda: w.cta.origin(w))
