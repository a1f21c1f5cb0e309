"""`python -m bench hopper`: TFLOPS of ours beside cuDNN, flash-attn-4, FA3 and FA2 on this GPU.

FA3 is that of an installed vllm, or the library of its wheel (vllm_flash_attn/_vllm_fa3_C.abi3.so)
whose path the environment variable FA3_LIBRARY gives.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from bench.hopper import cells, files
from bench.hopper.accuracy import Jumps
from bench.hopper.cells import Cell, grid
from bench.hopper.cuda import CudaDevice
from bench.hopper.implementations import gemm, implementations
from bench.hopper.measure import Bench, DeviceLost, Measurement
from bench.hopper.summary import FORWARD_GOALS, Goals, cell_line, report
from fa4.profile.options import output_folder, positive


def main(argv: list[str]) -> int:
    """Measure, print and save; 1 when cells are left or ours is not right in one."""
    options = parse(argv)
    if not torch.cuda.is_available():
        print("No CUDA device here: this command measures a GPU.")
        return 2
    device = CudaDevice()
    bench = Bench(
        device,
        implementations(options.ours_only),
        gemm(cells.GEMM_SIZE, device.name),
        getattr(torch, options.dtype),
        jumps=Jumps(options.jumps / 100, options.jump_rows) if options.jumps else None,
    )
    return measure_grid(bench, options, ["hopper", *argv], FORWARD_GOALS)


def measure_grid(
    bench: Bench, options: argparse.Namespace, argv: Sequence[str], goals: Goals
) -> int:
    """Measure the chosen cells, print and save; see `main`. options: of `add_grid_options`."""
    for implementation in bench.implementations:
        if implementation.missing:
            print(f"{implementation.name} is missing: {implementation.missing}")
    run = {
        **files.environment(),
        "command": shlex.join(["python", "-m", "bench", *_without_folder(argv)]),
        "dtype": options.dtype,
        "jumps": asdict(bench.jumps) if bench.jumps else None,
        "effort": asdict(bench.effort),
    }
    print(f"{run['gpu']}, {run['date']}, {run['versions']}", flush=True)
    todo = grid(options.sets, options.head_dims, options.masks, options.lengths)
    done = Run(todo, Budget(options.seconds, time.monotonic), goals=goals)
    done.measure(bench.measure, lambda: files.save_json(options.out, done.content(run)))
    run["card_after"] = files.card_state()
    files.save_json(options.out, done.content(run))
    text = done.text()
    files.save(options.out, "hopper.txt", text)
    files.save_plot(options.out, done.measurements)
    print(f"\n{text}\n\nSaved in {options.out}")
    return 0 if done.good else 1


def _without_folder(argv: Sequence[str]) -> Sequence[str]:
    """Options without `--out FOLDER`, which says nothing to another machine."""
    if "--out" not in argv:
        return argv
    at = argv.index("--out")
    return argv[:at] + argv[at + 2 :]


def parse(argv: list[str]) -> argparse.Namespace:
    """Options; wrong ones end the program."""
    parser = argparse.ArgumentParser(prog="python -m bench hopper", description=__doc__)
    add_grid_options(parser)
    parser.add_argument(
        "--jumps",
        type=float,
        default=0.0,
        metavar="PERCENT",
        help="of the query blocks get a row whose maximum jumps late: a tile computed twice",
    )
    parser.add_argument("--jump-rows", type=positive, default=128, help="rows of such a block")
    return parser.parse_args(argv)


def add_grid_options(parser: argparse.ArgumentParser) -> None:
    """Which cells, of what, for how long, and where results go."""
    parser.add_argument("--head-dims", type=positive, nargs="+", default=cells.HEAD_DIMS)
    parser.add_argument("--masks", nargs="+", choices=cells.MASKS, default=cells.MASKS)
    lengths = parser.add_mutually_exclusive_group()
    lengths.add_argument("--lengths", type=positive, nargs="+", default=cells.LENGTHS)
    lengths.add_argument(
        "--quick",
        dest="lengths",
        action="store_const",
        const=cells.QUICK_LENGTHS,
        help="two lengths only",
    )
    parser.add_argument(
        "--sets",
        nargs="+",
        choices=cells.SETS,
        default=cells.SETS,
        help="equal heads, and 32 query heads over 8 key/value heads at head dim 128",
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--ours-only", action="store_true", help="no peers")
    parser.add_argument("--out", type=output_folder, default="out", help="folder for the results")
    parser.add_argument(
        "--seconds", type=float, help="start no new cell after this long; default: no limit"
    )


@dataclass
class Budget:
    """Seconds that a run may take; None is no limit. `clock` is in seconds."""

    seconds: float | None
    clock: Callable[[], float]
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()

    @property
    def used(self) -> float:
        return self.clock() - self.start

    @property
    def spent(self) -> bool:
        return self.seconds is not None and self.used >= self.seconds


@dataclass
class Run:
    """The cells of a run: measured, and left."""

    todo: Sequence[Cell]
    budget: Budget
    measurements: list[Measurement] = field(default_factory=list)
    stopped: str = ""  # why cells are left
    goals: Goals = FORWARD_GOALS

    @property
    def left(self) -> list[str]:
        return [str(cell) for cell in self.todo[len(self.measurements) :]]

    @property
    def good(self) -> bool:
        """Everything was measured, and ours is right wherever it was."""
        ours = [measurement.outcomes["ours"].status for measurement in self.measurements]
        return not self.left and set(ours) <= {"ok"}

    def measure(
        self, measure: Callable[[Cell], Measurement], after_each: Callable[[], object]
    ) -> None:
        """Until all is done, the budget is spent or the GPU is lost."""
        for cell in self.todo:
            if self.budget.spent:
                self.stopped = f"the budget of {self.budget.seconds:.0f} s is spent"
                break
            try:
                self.measurements.append(measure(cell))
            except DeviceLost as lost:
                self.measurements.append(lost.measurement)
                self.stopped = f"the GPU was lost in {cell}: {lost}"
            self._progress()
            after_each()
            if self.stopped:
                break

    def content(self, run: dict[str, Any]) -> dict[str, Any]:
        """What is saved as JSON."""
        return files.content(run, self.measurements, self.left, self.stopped, self.goals)

    def text(self) -> str:
        """The tables, and what is left."""
        text = report(self.measurements, self.goals)
        if not self.left:
            return text
        left = f"Not measured, {self.stopped}: {', '.join(self.left)}"
        return "\n\n".join((text, left))

    def _progress(self) -> None:
        done, used = len(self.measurements), self.budget.used
        rest = used / done * (len(self.todo) - done)
        line = cell_line(self.measurements[-1])
        print(f"[{done}/{len(self.todo)}, {used:.0f} s, {rest:.0f} s to go] {line}", flush=True)
