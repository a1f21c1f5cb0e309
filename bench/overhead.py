"""`python -m bench overhead`: microseconds of the host from the Python call to the kernel launch.

On a GPU: whole calls of `fa4.flash_attn_func` and of the peers in turns, one by one after a
synchronize, in a loop of calls, and in one with their backwards; ours by stage. Without a GPU: ours
alone, with the compiled host function but with nothing behind it: no CUDA driver, no caching
allocator, no queries of stream and capture. The attention is tiny, so that the GPU is never what is
waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any
from unittest import mock

import torch

from bench.hopper import files
from bench.hopper.implementations import OURS, Implementation, implementations
from fa4.profile.options import output_file, positive

SHAPE = (1, 256, 4, 128)  # batch, length, heads, head dim
LOOP = 100  # calls; far below the launch queue's depth, where the host would wait
AFTER_SYNCHRONIZE = (1, 2, 3, 5, 10, 20, 50, 100)  # numbers of calls that are shown
WARM_SECONDS = 1.0  # of calls before any is timed: processors raise their clocks, caches fill
LIMIT_US = 15.0
IDLE = "8"  # first letter of the names in the runtime that does nothing

Call = Callable[[], Any]
Microseconds = dict[str, float]


def main(argv: list[str]) -> int:
    """Measure and print; 1 when a call takes longer than LIMIT_US on a GPU."""
    options = parse(argv)
    if torch.cuda.is_available():
        content = measure("cuda", implementations(), options.rounds)
    else:
        with launches_without_driver():
            ours_only = implementations(ours_only=True)
            content = measure("cpu", ours_only, options.rounds)
    print(report(content))
    if options.json:
        content = {**files.environment(), "cpu": os.cpu_count(), **content}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return int(content["gpu_measured"] and content["loop_us"][OURS] > LIMIT_US)


def parse(argv: list[str]) -> argparse.Namespace:
    """Options; wrong ones end the program."""
    parser = argparse.ArgumentParser(prog="python -m bench overhead", description=__doc__)
    parser.add_argument("--rounds", type=positive, default=30)
    parser.add_argument("--json", type=output_file, help="file for the results")
    return parser.parse_args(argv)


def measure(device: str, compared: list[Implementation], rounds: int) -> dict[str, Any]:
    """All tables in microseconds; medians over the rounds."""
    inputs = [torch.randn(SHAPE, device=device).bfloat16() for _ in "qkv"]
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    calls, missing = {}, {}
    for implementation in compared:
        if implementation.missing:
            missing[implementation.name] = implementation.missing
            continue
        calls[implementation.name] = _in_context(implementation, inputs)
    training = {}
    if device == "cuda":
        training, failed = _runnable(
            {i.name: _training(i, inputs) for i in compared if i.name in calls}
        )
        missing |= failed
    with torch.no_grad():
        warm_up(calls, synchronize)
        ours = {OURS: calls[OURS]}
        measured = {
            "each_us": one_by_one(calls, rounds, synchronize),
            "each_us_alone": one_by_one(ours, rounds, synchronize),
            "each_us_never_waiting": one_by_one(ours, rounds, lambda: None),
            "loop_us": loops(calls, rounds, synchronize),
            "stages_us": loops(
                {name: _repeat(stage) for name, stage in stages(*inputs).items()},
                rounds,
                synchronize,
            ),
        }
    measured["training_us"] = loops(training, rounds, synchronize)
    return {"gpu_measured": device == "cuda", "missing": missing, **measured}


def warm_up(runs: Mapping[str, Callable[[int, Call], None]], synchronize: Call) -> None:
    """Compile, and go on for WARM_SECONDS."""
    until = 0.0
    while time.perf_counter() < until or not until:
        for run in runs.values():
            run(LOOP, lambda: None)
            synchronize()
        until = until or time.perf_counter() + WARM_SECONDS  # compiling takes longer


def _runnable(
    runs: Mapping[str, Callable[[int, Call], None]],
) -> tuple[dict[str, Callable[[int, Call], None]], dict[str, str]]:
    """Those that can be called, compiled by that; and why the peers among the others cannot."""
    good, failed = {}, {}
    for name, run in runs.items():
        try:
            run(3, lambda: None)
        except Exception as error:
            if name == OURS:
                raise
            failed[f"{name}, training"] = f"{type(error).__name__}: {error}"
        else:
            good[name] = run
    return good, failed


def loops(
    runs: Mapping[str, Callable[[int, Call], None]], rounds: int, synchronize: Call
) -> Microseconds:
    """Per call, of LOOP calls back to back that start with an empty queue; in turns."""
    samples = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            synchronize()
            begin = time.perf_counter()
            run(LOOP, lambda: None)
            samples[name].append((time.perf_counter() - begin) / LOOP * 1e6)
    synchronize()
    return {name: median(values) for name, values in samples.items()}


def one_by_one(
    runs: Mapping[str, Callable[[int, Call], None]], rounds: int, synchronize: Call
) -> dict[str, Microseconds]:
    """Of the first, second, ... call after a synchronize; in turns, so with cold caches."""
    count = max(AFTER_SYNCHRONIZE)
    samples = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            synchronize()
            samples[name].append(_durations(run, count))
    synchronize()
    return {
        name: {str(n): median(row[n - 1] for row in rows) * 1e6 for n in AFTER_SYNCHRONIZE}
        for name, rows in samples.items()
    }


def _durations(run: Callable[[int, Call], None], count: int) -> list[float]:
    times = []
    run(count, lambda: times.append(time.perf_counter()))
    return [end - begin for begin, end in pairwise(times)]


def stages(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Call]:
    """The parts of a call of ours; those behind "launch" are parts of it."""
    from fa4 import api
    from fa4.arguments import pack_per_call

    options = (None if q.is_cuda else api.emulated_arch(), None, False, None, None, 0.0, False)
    layouts = tuple(map(api.layout_of, (q, k, v)))
    asked = (layouts, options[0], False, *options[1:])
    call = api._prepare(*asked)
    launch, tensors = call.launch, (q, k, v, torch.empty_like(q))

    def stream_and_counter() -> tuple[int, int]:
        torch._C._cuda_getDevice()
        stream = torch._C._cuda_getCurrentRawStream(launch.device)
        return stream, launch.counters.address(stream) if launch.counters else 0

    stream, counter = stream_and_counter()

    def block() -> bytes:
        addresses = (tensor.data_ptr() for tensor in tensors)
        return pack_per_call(*addresses, 0, counter, launch.num_sms) + launch.rest

    packed, alone = block(), host_function_alone(*_resolved(layouts, options))
    return {
        "(reading the clock)": time.perf_counter,
        "layouts": lambda: (api.layout_of(q), api.layout_of(k), api.layout_of(v)),
        "lookup": lambda: api._prepare(*asked),
        "allocate": lambda: call.empty(*call.out),
        "launch": lambda: launch(*tensors, None),
        "- stream, counter": stream_and_counter,
        "- block": block,
        "- host function, driver": lambda: launch.entry(packed, stream),
        "-- host function alone": lambda: alone(packed, stream),
    }


def _resolved(layouts: tuple, options: tuple) -> tuple[Any]:
    from fa4 import api

    return api.resolve(layouts, *options)[1:]


def host_function_alone(plan: Any) -> Callable[[bytes, int], int]:
    """The compiled host function of a plan, linked against a CUDA runtime that does nothing."""
    from cutlass._mlir._mlir_libs._cutlass_ir._execution_engine import BinaryExecutionEngine

    from fa4 import compile as compilation
    from fa4.emulator.link import redirect

    name = compilation.load(plan).function_name  # which makes the object file
    image = redirect(compilation.object_file(plan).read_bytes(), _runtime_names(), IDLE)
    engine = BinaryExecutionEngine(image, [_idle_runtime().path], True)
    entry = compilation.c_interface(engine, name)
    entry.owner = engine
    return entry


def _runtime_names() -> list[str]:
    """What host functions import."""
    from fa4.emulator.cuda_runtime import RETURN_ZERO, EmulatedRuntime

    return [*EmulatedRuntime(None, None).callbacks(), *RETURN_ZERO]


@cache
def _idle_runtime() -> Any:
    from fa4.emulator.link import emulated_name
    from fa4.emulator.shim import Shim

    return Shim({}, [emulated_name(name, IDLE) for name in _runtime_names()])


@contextmanager
def launches_without_driver() -> Iterator[None]:
    """CPU tensors take the way of CUDA tensors, up to the driver."""
    from fa4 import api, launch

    class Launcher:
        @staticmethod
        def prepare(problem: Any, plan: Any, strides: Any, device: Any, with_lse: bool) -> Any:
            rest = launch._rest(problem, plan, strides, with_lse)
            counters = launch.tile_counters(device)
            return launch._NativeLaunch(plan, host_function_alone(plan), rest, 0, 132, counters)

    fakes = {
        "_cuda_getDevice": lambda: 0,
        "_cuda_getCurrentRawStream": lambda device: 0,
        "_cuda_isCurrentStreamCapturing": lambda: False,
    }
    with (
        mock.patch.dict(os.environ, FA4_EMULATE_ARCH="sm_90a"),
        mock.patch.object(api, "_launcher", return_value=Launcher),
        mock.patch.multiple(torch._C, create=True, **fakes),
        mock.patch.object(torch.cuda, "current_stream", mock.MagicMock()),
    ):
        api._prepare.cache_clear()
        yield
        api._prepare.cache_clear()


def _in_context(
    implementation: Implementation, inputs: list[torch.Tensor]
) -> Callable[[int, Call], None]:
    """Calls n times, with `between` before and after each."""
    return _calls(implementation, implementation.bind(tuple(inputs), False))


def _training(
    implementation: Implementation, inputs: list[torch.Tensor]
) -> Callable[[int, Call], None]:
    """The same with a backward behind each call, by autograd."""
    leaves = tuple(t.detach().clone().requires_grad_() for t in inputs)
    forward, grad_out = implementation.bind(leaves, False), torch.ones_like(inputs[0])

    def call() -> None:
        (out,) = implementation.output(forward())
        torch.autograd.grad(out, leaves, grad_out)

    return _calls(implementation, call)


def _calls(implementation: Implementation, call: Call) -> Callable[[int, Call], None]:
    def run(times: int, between: Call) -> None:
        with implementation.context():
            between()
            for _ in range(times):
                call()
                between()

    return run


def _repeat(call: Call) -> Callable[[int, Call], None]:
    def run(times: int, _between: Call) -> None:
        for _ in range(times):
            call()

    return run


def report(content: dict[str, Any]) -> str:
    """The tables as text."""
    lines = []
    if not content["gpu_measured"]:
        lines.append(
            "No GPU: without the CUDA driver, torch's caching allocator, and queries of stream and "
            "capture. The host function runs, and TMA descriptors are encoded."
        )
    lines += [f"{name} is missing: {why}" for name, why in content["missing"].items()]
    lines.append(f"\n{LOOP} calls back to back, us per call:")
    lines += [f"  {name:24}{us:8.2f}" for name, us in content["loop_us"].items()]
    titles = {
        "each_us": "After a synchronize, in turns, us of call",
        "each_us_alone": "After a synchronize, alone, us of call",
        "each_us_never_waiting": "Without a synchronize, alone, us of call",
    }
    for key, title in titles.items():
        numbers = "".join(f"{n:>8}" for n in AFTER_SYNCHRONIZE)
        lines.append(f"\n{title:41}{numbers}")
        for name, row in content[key].items():
            lines.append(f"  {name:39}" + "".join(f"{us:8.2f}" for us in row.values()))
    if content["training_us"]:
        lines.append(f"\n{LOOP} calls with their backwards back to back, us per pair:")
        lines += [f"  {name:24}{us:8.2f}" for name, us in content["training_us"].items()]
    lines.append("\nOurs by stage, us:")
    lines += [f"  {name:24}{us:8.2f}" for name, us in content["stages_us"].items()]
    return "\n".join(lines)
