"""Interleaved timing, so that a drifting clock slows all implementations alike.

Each follows each other equally often: at its power limit the card runs faster behind a kernel that
draws little, and in one order, A B C A B C, that would always be for the good of the same one.

A `Device` hides CUDA, so that the order and the arithmetic are tested without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import median
from typing import Any, Protocol

Call = Callable[[], Any]


class Device(Protocol):
    """What the timing asks of a GPU."""

    def mark(self) -> Any:
        """An event, recorded behind all work so far."""

    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds between two marks that are reached."""

    def synchronize(self) -> None:
        """Wait for all work."""

    def host_seconds(self) -> float:
        """A monotonic clock of the host."""


@dataclass(frozen=True)
class Effort:
    """How long and how often everything is measured."""

    rounds: int = 8  # at least: see `balanced_rounds`
    sample_ms: float = 10.0  # of one implementation in one round: replays of its graph
    max_launches: int = 100  # in one graph
    eager_rounds: int = 3
    eager_ms: float = 15.0  # of one implementation in one round of eager calls
    min_eager_calls: int = 5
    max_eager_calls: int = 50  # far below the launch queue's depth, where the host would wait

    def launches(self, estimate_ms: float) -> int:
        """Launches per graph; two at least, so that gaps between kernels are part of it."""
        return min(max(math.ceil(self.sample_ms / estimate_ms), 2), self.max_launches)

    def balanced_rounds(self, implementations: int) -> int:
        """`rounds`, or the next number that gives all orders of so many implementations alike.

        A part of them would put one more often behind a peer that leaves the card cool: 8 rounds
        for 4 implementations (4 orders), 10 for 5 (10 orders).
        """
        orders = len(balanced_orders([""] * implementations)) or 1
        return math.ceil(self.rounds / orders) * orders

    def eager_calls(self, estimate_ms: float) -> int:
        """Eager calls per round."""
        wanted = math.ceil(self.eager_ms / estimate_ms)
        return min(max(wanted, self.min_eager_calls), self.max_eager_calls)


@dataclass(frozen=True)
class Work:
    """What is timed between two marks: `calls` calls that run the kernel `launches` times."""

    call: Call
    calls: int
    launches: int
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass
class Samples:
    """One entry a round: device time per launch in ms, host time per call in microseconds."""

    device_ms: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)

    @property
    def ms(self) -> float:
        return median(self.device_ms)

    @property
    def us(self) -> float:
        return median(self.host_us)


def estimate_ms(device: Device, call: Call, calls: int = 3) -> float:
    """Device time of one call, roughly; the call has been made before."""
    device.synchronize()
    start = device.mark()
    for _ in range(calls):
        call()
    end = device.mark()
    device.synchronize()
    return max(device.elapsed(start, end) / calls, 1e-4)


def balanced_orders(names: Sequence[str]) -> list[list[str]]:
    """Orders in which each name stands in each place, and next behind each other, equally often.

    Source: Williams, Experimental designs balanced for the estimation of residual effects, 1949.
    """
    n = len(names)
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(n)]
    orders = [[names[(first + step) % n] for step in zigzag] for first in range(n)]
    return orders + [order[::-1] for order in orders] if n % 2 else orders


def interleave(
    device: Device, works: Mapping[str, Work], rounds: int, wait_between: bool
) -> dict[str, Samples]:
    """Run every work once a round, in balanced orders, and time it.

    wait_between: synchronize before each sample, for the host's time of calls that find an empty
    queue. Otherwise the GPU never idles between samples, and its clocks stay where load puts them.
    """
    samples = {name: Samples() for name in works}
    marks = []
    orders = cycle(balanced_orders(list(works)))
    for order in islice(orders, rounds):
        for name in order:
            work = works[name]
            if wait_between:
                device.synchronize()
            with work.context():
                start, begin = device.mark(), device.host_seconds()
                for _ in range(work.calls):
                    work.call()
                seconds = device.host_seconds() - begin
                marks.append((name, start, device.mark()))
            samples[name].host_us.append(seconds / work.calls * 1e6)
    device.synchronize()
    for name, start, end in marks:
        samples[name].device_ms.append(device.elapsed(start, end) / works[name].launches)
    return samples
