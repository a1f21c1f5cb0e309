"""A device with a clock that only fake kernels move, and implementations of a known speed."""

from dataclasses import dataclass, field
from typing import Any

import torch

from bench.hopper.implementations import Implementation
from bench.hopper.measure import Outcome
from bench.hopper.passes import FORWARD

HOST_US = 7.0  # what the host spends on a fake call


@dataclass
class Captured:
    replay: Any
    results: tuple


@dataclass
class FakeDevice:
    """In order, one stream: a mark is the moment at which the work before it ends."""

    name: str = "cpu"
    gpu_ms: float = 0.0
    host_s: float = 0.0
    log: list = field(default_factory=list)
    broken: bool = False
    capturing: bool = False

    def mark(self):
        self.gpu_ms = max(self.gpu_ms, self.host_s * 1e3)
        return self.gpu_ms

    def elapsed(self, start, end):
        return end - start

    def synchronize(self):
        self.host_s = max(self.host_s, self.gpu_ms / 1e3)

    def host_seconds(self):
        return self.host_s

    def launch(self, name, ms, launches=1):
        self.log.append(name)
        self.host_s += HOST_US * 1e-6
        self.gpu_ms = max(self.gpu_ms, self.host_s * 1e3) + ms * launches

    def capture(self, call, launches):
        result = call()
        name, ms = self.last

        def replay():
            self.launch(name, ms, launches)
            result.copy_(self.fill(name))

        return Captured(replay, (result,))

    def clock_mhz(self):
        return 1755

    def alive(self):
        return not self.broken


def implementation(device, name, ms, error=None, scale=1.0, replays_work=True, measured=FORWARD):
    """Right up to `scale`, `ms` per launch; raises `error` when called.

    Results lie end to end, since the device's graphs know a single tensor.
    """
    device.fills = getattr(device, "fills", {})
    device.fill = lambda who: device.fills[who]
    shapes = []

    def bind(inputs, causal):
        results = [(t * scale).to(inputs[0].dtype) for t in measured.reference(inputs, causal)]
        shapes[:] = [t.shape for t in results]
        flat = torch.cat([t.flatten() for t in results])
        device.fills[name] = flat.clone() if replays_work else torch.full_like(flat, torch.nan)

        def call():
            if error:
                raise error
            device.last = (name, ms)
            device.launch(name, ms)
            return flat.clone()

        return call

    def output(flat):
        parts = flat.split([shape.numel() for shape in shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))

    return Implementation(name, bind, output)


def outcome(tflops, ms=1.0):
    """A good one."""
    return Outcome("ok", "", tflops=tflops, ms=ms, eager_ms=2 * ms, host_us=10.0)
