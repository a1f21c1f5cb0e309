"""One cell: run, check, capture, time all implementations in turns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.hopper import accuracy
from bench.hopper.accuracy import Jumps
from bench.hopper.cells import GEMM_SIZE, Cell, tflops
from bench.hopper.implementations import Implementation
from bench.hopper.passes import FORWARD, Given, Pass
from bench.hopper.timing import Call, Effort, Samples, Work, estimate_ms, interleave

OK, MISSING, FAILED, WRONG, LEFT = "ok", "missing", "failed", "wrong", "left"
GEMM_ROUNDS = 3
MAX_NOTE = 400  # characters of an error


@dataclass
class Outcome:
    """One implementation in one cell. Times are medians: of graph replays per launch (`ms`), and
    of eager calls on the device and on the host.

    `host_us` is the mean of few calls behind a synchronize and the other implementations, whose
    first finds cold caches: two to three times that of calls in a loop, see `bench overhead`.
    """

    status: str = LEFT
    note: str = "not reached"  # why the status is not ok
    first_call_s: float | None = None  # with compilation
    rel_rms: float | None = None
    worst_row: float | None = None
    launches: int | None = None  # per graph
    ms: float | None = None
    tflops: float | None = None
    eager_ms: float | None = None
    host_us: float | None = None
    samples_ms: list[float] = field(default_factory=list)

    def end(self, status: str, note: str) -> None:
        """Close without times."""
        self.status, self.note = status, " ".join(note.split())[:MAX_NOTE]

    def add_times(self, flops: int, graph: Samples, eager: Samples) -> None:
        """Close with the medians of the rounds."""
        self.status, self.note = OK, ""
        self.samples_ms, self.ms = graph.device_ms, graph.ms
        self.tflops = tflops(flops, graph.ms)
        self.eager_ms, self.host_us = eager.ms, eager.us


@dataclass
class Measurement:
    """One cell: the card's state (GEMM rate, SM clock under load) and all implementations."""

    cell: Cell
    outcomes: dict[str, Outcome]
    gemm_tflops: float | None = None
    clock_mhz: int | None = None


class DeviceLost(RuntimeError):
    """The CUDA context did not survive an implementation; nothing runs in this process any more."""

    def __init__(self, note: str, measurement: Measurement) -> None:
        super().__init__(note)
        self.measurement = measurement  # as far as it came


@dataclass(frozen=True)
class Bench:
    """What all cells share. `gemm` is a product of GEMM_SIZE^3."""

    device: Any  # a timing.Device that captures graphs: cuda.CudaDevice, or a fake one
    implementations: Sequence[Implementation]
    gemm: Call
    dtype: torch.dtype = torch.bfloat16
    effort: Effort = field(default_factory=Effort)
    jumps: Jumps | None = None
    measured: Pass = FORWARD

    def measure(self, cell: Cell) -> Measurement:
        """Errors of an implementation end up in its outcome.

        Raises DeviceLost when CUDA is gone.
        """
        measurement = Measurement(cell, {i.name: Outcome() for i in self.implementations})
        inputs = self.measured.inputs(cell, self.dtype, self.device.name, self.jumps)
        expected = self.measured.reference(inputs, cell.causal)
        graphs, eager = {}, {}
        for implementation in self.implementations:
            outcome = measurement.outcomes[implementation.name]
            if implementation.missing:
                outcome.end(MISSING, implementation.missing)
                continue
            with self._guarded(measurement, [outcome]):
                works = self._prepare(implementation, inputs, cell.causal, expected, outcome)
                if works:
                    graphs[implementation.name], eager[implementation.name] = works
        with self._guarded(measurement, [measurement.outcomes[name] for name in graphs]):
            self._time(measurement, graphs, eager)
        return measurement

    @contextmanager
    def _guarded(self, measurement: Measurement, outcomes: Sequence[Outcome]) -> Iterator[None]:
        """Turn an exception into failed outcomes, and into DeviceLost when CUDA is gone."""
        try:
            yield
        except Exception as error:
            note = f"{type(error).__name__}: {error}"
            for outcome in outcomes:
                outcome.end(FAILED, note)
            if not self.device.alive():
                raise DeviceLost(note, measurement) from error

    def _prepare(
        self,
        implementation: Implementation,
        inputs: Given,
        causal: bool,
        expected: Given,
        outcome: Outcome,
    ) -> tuple[Work, Work] | None:
        """Run, check, capture, check again: graph and eager calls to time; None if wrong."""
        device, effort = self.device, self.effort
        call = implementation.bind(inputs, causal)
        with implementation.context():
            begin = time.perf_counter()
            call()
            device.synchronize()
            outcome.first_call_s = time.perf_counter() - begin
            _poison_free_memory(inputs[0])
            if not self._right(implementation.output(call()), expected, outcome, "a call"):
                return None
            estimate = estimate_ms(device, call)
            outcome.launches = effort.launches(estimate)
            captured = device.capture(call, outcome.launches)
        # A graph whose second replay does nothing would be fast: poison, then look again
        captured.replay()
        outs = [implementation.output(result) for result in captured.results]
        for out in itertools.chain(*outs):
            out.fill_(torch.nan)
        captured.replay()
        if not all(self._right(out, expected, outcome, "a graph replay") for out in outs):
            return None
        calls = effort.eager_calls(estimate)
        return (
            Work(captured.replay, 1, outcome.launches),
            Work(call, calls, calls, implementation.context),
        )

    def _time(
        self, measurement: Measurement, graphs: Mapping[str, Work], eager: Mapping[str, Work]
    ) -> None:
        device, effort = self.device, self.effort
        flops = self.measured.flops(measurement.cell)
        gemm = interleave(device, {"": Work(self.gemm, 4, 4)}, GEMM_ROUNDS, wait_between=False)
        measurement.gemm_tflops = tflops(2 * GEMM_SIZE**3, gemm[""].ms)
        rounds = effort.balanced_rounds(len(graphs))
        replays = interleave(device, graphs, rounds, wait_between=False)
        measurement.clock_mhz = device.clock_mhz()
        for work in eager.values():
            with work.context():
                work.call()  # capturing returned the allocator's memory: fetch it again
        calls = interleave(device, eager, effort.eager_rounds, wait_between=True)
        for name in graphs:
            measurement.outcomes[name].add_times(flops, replays[name], calls[name])

    def _right(self, results: Given, expected: Given, outcome: Outcome, what: str) -> bool:
        """Record the error of `results`, and close the outcome if it is too large."""
        error = self.measured.error(results, expected)
        outcome.rel_rms, outcome.worst_row = error.all_rows, error.worst_row
        if not error.ok:
            outcome.end(
                WRONG,
                f"{what}: relative RMS {error.all_rows:.1e}, {error.worst_row:.1e} "
                f"in the worst row (limit {accuracy.ROW_LIMIT:.0e})",
            )
        return error.ok


def _poison_free_memory(like: torch.Tensor) -> None:
    """Leave NaN in the block that the allocator hands out next for a tensor of this size.

    What a kernel does not write can then not be the right result of the call before.
    """
    torch.full_like(like, torch.nan)
