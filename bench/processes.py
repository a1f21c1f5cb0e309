"""Work in several processes, whose records come as they are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from queue import Empty
from typing import Any

PATIENCE = 150.0  # seconds of silence until what still runs counts as lost


def records(
    work: Callable[..., None], shares: Sequence[tuple[Any, ...]], seconds: float | None = None
) -> Iterator[Any]:
    """What `work(*share, put)` puts, of one process per share.

    A process that dies or hangs is not waited for: what it left out is missing. seconds: how long
    processes may start something new, so nothing counts as lost for PATIENCE after that.
    """
    context = get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=_run, args=(work, share, queue), daemon=True) for share in shares
    ]
    for process in processes:
        process.start()
    running, patient_until = len(processes), time.monotonic() + (seconds or 0.0) + PATIENCE
    while running and time.monotonic() < patient_until:
        try:
            record = queue.get(timeout=1.0)
        except Empty:
            if not any(process.is_alive() for process in processes):
                break
            continue
        patient_until = max(patient_until, time.monotonic() + PATIENCE)
        if record is None:
            running -= 1
        else:
            yield record
    for process in processes:
        process.kill() if running else process.join()


def _run(work: Callable[..., None], share: tuple[Any, ...], queue: Any) -> None:
    """None ends the records of a process."""
    work(*share, queue.put)
    queue.put(None)
