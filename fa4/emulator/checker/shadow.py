"""Who wrote each cell of a memory last, and who has read it since.

A cell is a 32-bit word of shared or global memory, or half a warp's lanes of a column of tensor
memory. Cells hold numbers of `Records`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .clocks import ASYNC, GENERIC
from .records import Records

Report = Callable[[str, np.ndarray, np.ndarray], None]
_LONG = 64


@dataclass(frozen=True)
class View:
    """Which clock an access is judged by.

    `clocks` is the clock of one warp (5, actors), or of several (warps, 5, actors) with `lanes`,
    the warp of each cell (in a shape that fits the cells'). `row`: GENERIC, ASYNC or TENSOR; with
    ASYNC, what other engines have done is judged by GENERIC. `own`: an actor whose earlier steps
    come first anyhow.
    """

    records: Records
    clocks: np.ndarray
    row: int
    own: int = -1
    lanes: np.ndarray | None = None

    def before(self, cells: np.ndarray, writers: bool) -> np.ndarray | None:
        """Whether the access in each cell comes before; None when all do."""
        if self.lanes is None and cells.size > _LONG and self._known(_heads(cells), writers).all():
            return None
        known = self._known(cells, writers)
        return None if known.all() else known

    def knows(self, writer: int) -> bool:
        """Whether one write comes before, for an access of one warp."""
        records, row = self.records, self.row
        actor = records.actor.item(writer)
        if row == ASYNC:
            row = records.generic.item(writer)
        return actor == self.own or self.clocks.item(row, actor) >= records.step.item(writer)

    def _known(self, cells: np.ndarray, writers: bool) -> np.ndarray:
        records, row = self.records, self.row
        actor, step = records.actor[cells], records.step[cells]
        if row == ASYNC:
            row = records.generic[cells] if writers else GENERIC
        if self.lanes is None:
            known = self.clocks[row, actor] >= step
        else:
            known = self.clocks[self.lanes, row, actor] >= step
        if self.own >= 0:
            known |= actor == self.own
        return known


class Shadow:
    """Cells of one memory. `columns`: cells of a row of the two-dimensional view.

    Reads are kept per reading actor, the latest of each: an actor's steps are in order, so whoever
    comes after the latest comes after all.
    """

    def __init__(self, cells: int, columns: int, report: Report, written: bool = False) -> None:
        self.report, self.written = report, written  # written: by somebody before the launch
        self.writers = np.zeros((-(-cells // columns), columns), np.int32)
        self.readers = np.zeros((0, *self.writers.shape), np.int32)
        self._planes = np.full(0, -1)  # plane of `readers` by actor

    def read(self, where: object, flat: bool, records: np.ndarray | int, view: View) -> None:
        """`records` read the cells `where`, an index of the flat or the two-dimensional view."""
        cells = _of(self.writers, flat)[where]
        if not self.written and np.count_nonzero(cells) != cells.size:
            none = cells == 0
            self.report("unwritten", cells[none], _at(records, cells.shape)[none])
        known = view.before(cells, writers=True)
        if known is not None:
            self.report("read", cells[~known], _at(records, cells.shape)[~known])
        if isinstance(records, int):
            planes = self._plane_of(view.records.actor.item(records))
        else:
            planes = self._planes_of(view.records.actor[records])
        index = where if isinstance(where, tuple) else (where,)
        _of_planes(self.readers, flat)[(planes, *index)] = records

    def read_by_several(self, where: object, readers: list[tuple[int, View]]) -> None:
        """The same for several (record, view) that read the same cells of the second view."""
        cells = self.writers[where]
        heads = _heads(cells)
        writers = set(heads.tolist())
        for record, view in readers:
            if 0 in writers or not all(map(view.knows, writers)):
                self.read(where, False, record, view)
            else:
                plane = self._plane_of(view.records.actor.item(record))  # may make a new one
                self.readers[plane, where] = record

    def _plane_of(self, actor: int) -> int:
        """The plane of one actor."""
        if actor < len(self._planes):
            plane = self._planes.item(actor)
            if plane >= 0:
                return plane
        return int(self._planes_of(np.array([actor]))[0])

    def _planes_of(self, actors: np.ndarray) -> np.ndarray:
        """The plane of each actor, new for those that have none."""
        highest = int(np.max(actors))
        if highest >= len(self._planes):
            extra = np.full(highest + 64 - len(self._planes), -1)
            self._planes = np.concatenate((self._planes, extra))
        planes = self._planes[actors]
        if np.min(planes) < 0:
            new = np.unique(np.asarray(actors)[planes < 0])
            self._planes[new] = len(self.readers) + np.arange(len(new))
            fresh = np.zeros((len(new), *self.writers.shape), np.int32)
            self.readers = np.concatenate((self.readers, fresh))
            planes = self._planes[actors]
        return planes

    def write(self, where: object, flat: bool, records: np.ndarray | int, view: View) -> None:
        """`records` overwrite the cells."""
        target = _of(self.writers, flat)
        cells = target[where]
        known = view.before(cells, writers=True)
        if known is not None:
            self.report("write", cells[~known], _at(records, cells.shape)[~known])
        self._end_reads(where, flat, records, view)
        target[where] = records
        if not isinstance(records, int):
            now = target[where]
            lost = now != records
            if np.count_nonzero(lost):
                self.report("write", now[lost], _at(records, now.shape)[lost])

    def _end_reads(self, where, flat: bool, records: np.ndarray | int, view: View) -> None:
        """All readers of the cells must come before; then they are forgotten."""
        planes = _of_planes(self.readers, flat)
        index = (slice(None), *(where if isinstance(where, tuple) else (where,)))
        every = planes[index]
        if not np.count_nonzero(every):
            return
        for cells in every:
            if np.count_nonzero(cells):
                known = view.before(cells, writers=False)
                if known is not None:
                    self.report("overwrite", cells[~known], _at(records, cells.shape)[~known])
        planes[index] = 0

    def forget(self, where: tuple) -> None:
        """The cells of the two-dimensional view hold nothing any more."""
        self.writers[where] = 0
        self.readers[(slice(None), *where)] = 0


def _heads(cells: np.ndarray) -> np.ndarray:
    """The first cell of each run of equal ones."""
    flat = cells.reshape(-1)
    starts = np.flatnonzero(flat[1:] != flat[:-1])
    return flat[np.concatenate(([0], starts + 1))]


def _of(plane: np.ndarray, flat: bool) -> np.ndarray:
    return plane.reshape(-1) if flat else plane


def _of_planes(planes: np.ndarray, flat: bool) -> np.ndarray:
    return planes.reshape(len(planes), planes.shape[1] * planes.shape[2]) if flat else planes


def _at(records: np.ndarray | int, shape: tuple) -> np.ndarray:
    return np.broadcast_to(records, shape)
