"""wgmma.mma_async: one 64 x N x (32 bytes of K) product of a warpgroup.

Register i of lane 4 g + t in warp w holds, of the accumulator, row 16 w + 8 (i / 2 % 2) + g and
column 8 (i / 4) + 2 t + i % 2; of A, row 16 w + 8 (i % 2) + g and the 32-bit word 4 (i / 2) + t.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .errors import WarpgroupError
from .formats import decode_words
from .matrix_descriptors import operand_units, operand_values
from .warpgroup import WARPS, WarpFlight, Warpgroup, active_warps, warpgroup_of

if TYPE_CHECKING:
    from .cta import Cta
    from .team import Team

ROWS = 64
_BYTES = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}


@dataclass(frozen=True)
class Site:
    """One wgmma instruction: shape, formats, and its registers as slots and as bit masks."""

    line: int
    n: int
    a_format: str
    b_format: str
    negate: bool
    a_mn_major: bool
    b_mn_major: bool
    slots: tuple[int, ...]
    accumulator_mask: int
    input_mask: int


_site = lru_cache(maxsize=4096)(Site)


def wgmma(w: Team, form: tuple, values: tuple, a, b, accumulate, mask) -> None:
    """wgmma.mma_async: checks, takes the registers, and hands over when the last warp issues.

    `form` are the fields of a Site; `values` the accumulators; `a` a descriptor or four registers.
    """
    site, positions = _site(*form), active_warps(w, mask)
    keeps = _uniform(accumulate, positions, "scale-d")
    left: list = [None] * len(positions)  # descriptors of A
    if not isinstance(a, tuple):
        left = _uniform(a, positions, "A's descriptor")
    right = _uniform(b, positions, "B's descriptor")
    stacked: np.ndarray | None = None
    issued: dict[Wgmma, list[tuple[int, int]]] = {}  # for the checker
    for position, *operands in zip(positions, left, right, keeps, strict=True):
        warp, lane, keep = w.warps[position].index, 32 * position, operands[2]
        group = warpgroup_of(w.cta, warp)
        flight = group.flights[warp % WARPS]
        _check_registers(flight, site)
        operation = _issue(group, flight, site, tuple(operands))
        before = operation.before if keep else None
        if keep and before is None:
            stacked = np.stack(values) if stacked is None else stacked
            operation.take_accumulators(warp % WARPS, stacked[:, lane : lane + 32])
        if operands[0] is None:
            operation.take_left(warp % WARPS, [register[lane : lane + 32] for register in a])
        _take_off(flight, operation, warp % WARPS)
        if w.checker is not None:
            issued.setdefault(operation, []).append((position, flight.issued))
        if all(operation.issued):
            del group.pending[flight.issued - 1]
            w.cta.cluster.mmas += 1
            w.cta.cluster.engines.submit(group.engine, operation.run, lambda: w.cta.origin(w))
    for operation, warps in issued.items():
        units = [place for place in operation.places if place is not None]
        w.checker.tensor.wgmma(w, units, warps)


def _uniform(values: np.ndarray, positions: list[int], what: str) -> list:
    """One value per warp. Raises WarpgroupError unless a warp's lanes agree."""
    lanes = values.reshape(-1, 32)
    if len(positions) < len(lanes):
        lanes = lanes[positions]
    if np.count_nonzero(lanes != lanes[:, :1]):
        raise WarpgroupError(f"{what} of a wgmma differs between the lanes of a warp")
    return lanes[:, 0].tolist()


def _issue(group: Warpgroup, flight: WarpFlight, site: Site, operands: tuple) -> Wgmma:
    """The warpgroup's operation of this number, which the warp must agree with."""
    operation = group.pending.get(flight.issued)
    before = flight.owners.get(site.slots)
    if operation is None:
        operation = Wgmma(group.cta, site, operands, before, flight.commits)
        group.pending[flight.issued] = operation
    elif (operation.before, operation.commits) != (before, flight.commits):
        raise WarpgroupError(
            f"warps of {group} differ in the wgmma.commit_group and wgmma.wait_group before this "
            "wgmma"
        )
    elif (operation.site, operation.operands) != (site, operands):
        raise WarpgroupError(
            f"warps of {group} execute different wgmma: PTX line {operation.site.line} with (A, B, "
            f"scale-d) {operation.operands}, and PTX line {site.line} with {operands}"
        )
    flight.issued += 1
    return operation


def _check_registers(flight: WarpFlight, site: Site) -> None:
    """Raises WarpgroupError for registers that are not this wgmma's to use."""
    own = site.slots in flight.owners
    if (not own and site.accumulator_mask & flight.accumulators) or (
        site.accumulator_mask & flight.inputs
    ):
        raise WarpgroupError(
            "the accumulator shares registers with a wgmma in flight; only a wgmma with exactly "
            "the same accumulator may follow without a wgmma.wait_group"
        )
    if site.input_mask & flight.accumulators:
        raise WarpgroupError("an A register is the accumulator of a wgmma in flight")
    if not flight.fenced:
        raise WarpgroupError("no wgmma.fence before the warp's first wgmma")
    if flight.touched & (site.accumulator_mask | site.input_mask):
        raise WarpgroupError(
            "registers of this wgmma have been accessed since a wgmma.wait_group returned them, "
            "and no wgmma.fence has followed"
        )


def _take_off(flight: WarpFlight, operation: Wgmma, warp: int) -> None:
    operation.issued[warp] = True
    flight.open.append(operation)
    flight.owners[operation.site.slots] = operation
    flight.accumulators |= operation.site.accumulator_mask
    flight.inputs |= operation.site.input_mask


class Wgmma:
    """One D = A B (+ D): the registers of its warps, the operation before it on D, its result."""

    def __init__(
        self,
        cta: Cta,
        site: Site,
        operands: tuple[int | None, int, bool],
        before: Wgmma | None,
        commits: int,
    ) -> None:
        self.cta, self.site, self.operands = cta, site, operands
        self.before, self.commits = before, commits
        self.issued = [False] * WARPS
        self.taken: np.ndarray | None = None  # accumulator registers (N / 2, 128)
        self.left: np.ndarray | None = None  # A registers (4, 128)
        self.result: np.ndarray | None = None  # (64, N)
        left, right, _ = operands
        self.places = (
            None if left is None else self._units(left, ROWS, site.a_mn_major, site.a_format),
            self._units(right, site.n, site.b_mn_major, site.b_format),
        )

    @property
    def done(self) -> bool:
        return self.result is not None

    def take_accumulators(self, warp: int, values: np.ndarray) -> None:
        """A warp's accumulator registers (N / 2, 32) at the issue."""
        if self.taken is None:
            self.taken = np.empty((len(values), 32 * WARPS), np.float32)
        self.taken[:, 32 * warp : 32 * warp + 32] = values

    def take_left(self, warp: int, values: list[np.ndarray]) -> None:
        """A warp's A registers at the issue."""
        if self.left is None:
            self.left = np.empty((len(values), 32 * WARPS), np.uint32)
        self.left[:, 32 * warp : 32 * warp + 32] = values

    def run(self) -> None:
        """Reads shared memory and computes the result."""
        site, rows = self.site, self.cta.shared.rows
        if self.places[0] is None:
            left = _left_from_registers(self.left, site.a_format)
        else:
            left = operand_values(rows[self.places[0]], site.a_mn_major, site.a_format)
        right = operand_values(rows[self.places[1]], site.b_mn_major, site.b_format)
        total = left @ right.T
        if site.negate:
            np.negative(total, out=total)
        if self.before is not None and self.operands[2]:
            total += self.before.result
        elif self.taken is not None:
            total += _from_registers(self.taken)
        self.result, self.before, self.taken, self.left = total, None, None, None
        self.cta.cluster.events += 1

    @cached_property
    def registers(self) -> np.ndarray:
        """The result as accumulator registers (N / 2, 128)."""
        parts = self.result.reshape(WARPS, 2, 8, self.site.n // 8, 4, 2)
        return parts.transpose(3, 1, 5, 0, 2, 4).reshape(self.site.n // 2, 32 * WARPS)

    def _units(self, descriptor: int, rows: int, mn_major: bool, fmt: str) -> np.ndarray:
        limit = self.cta.shared.row_count
        return operand_units(descriptor, rows, 2, mn_major, _BYTES[fmt], limit, hopper=True)


def _from_registers(registers: np.ndarray) -> np.ndarray:
    """Accumulator registers (N / 2, 128) as the matrix (64, N)."""
    parts = registers.reshape(-1, 2, 2, WARPS, 8, 4)
    return parts.transpose(3, 1, 4, 0, 5, 2).reshape(ROWS, -1)


def _left_from_registers(registers: np.ndarray, fmt: str) -> np.ndarray:
    """A registers (4, 128) as the matrix (64, K) in float32."""
    parts = registers.reshape(2, 2, WARPS, 8, 4)
    return decode_words(parts.transpose(2, 1, 3, 0, 4).reshape(ROWS, 8), fmt)
