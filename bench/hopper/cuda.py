"""The GPU behind the timing: events, graphs, clocks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.hopper.timing import Call


@dataclass(frozen=True)
class Captured:
    """A graph of launches, and what its last launches return (written by each replay)."""

    replay: Callable[[], None]
    results: tuple[Any, ...]


class CudaDevice:
    """The current CUDA device."""

    name = "cuda"

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return start.elapsed_time(end)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def host_seconds(self) -> float:
        return time.perf_counter()

    def capture(self, call: Call, launches: int) -> Captured:
        """Two results are kept, so that every other launch could not hide behind its neighbour."""
        graph, results = torch.cuda.CUDAGraph(), deque(maxlen=2)
        with torch.cuda.graph(graph):
            for _ in range(launches):
                results.append(call())
        return Captured(graph.replay, tuple(results))

    def clock_mhz(self) -> int | None:
        """SM clock over the last sample period, None where NVML does not answer."""
        try:
            return torch.cuda.clock_rate()
        except Exception:  # NVML's own errors, or no NVML: the clock is only shown
            return None

    def alive(self) -> bool:
        """False after a fault that took the CUDA context with it."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True
