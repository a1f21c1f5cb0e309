"""`fa4 profile`: what each warp role waits for, in a table, a Perfetto trace and a picture.

Without a flag the kernel runs in the emulator, and times are executed warp instructions. --gpu
records every mbarrier wait of the kernel on this machine's GPU, --ncu has Nsight Compute sample it,
and --trace draws what was recorded elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from fa4.profile.emulated import emulate
from fa4.profile.ncu import NcuError, profile_with_ncu
from fa4.profile.options import (
    add_kernel_options,
    add_size_options,
    output_folder,
    positive,
    problem_of,
    sizes_of,
)
from fa4.profile.picture import PlotExtraMissingError, draw
from fa4.profile.recorded import RECORDS, record
from fa4.profile.timeline import Timeline, shares_text
from fa4.profile.trace import timeline_of, trace_events
from fa4.profile.workload import Workload, this_gpu, workload

DRAWING = {"trace", "span", "out"}  # all that --trace has a use for
RECORDING, SHOWING = {"records"}, {"ctas", "span"}


def profile_main(argv: list[str]) -> int:
    """Profile one forward kernel; returns 0, or 1 when something could not be made.

    Exits with 2 for options that name no kernel, have no effect or ask for a GPU that is not there.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if useless := _useless(arguments, _given(parser, argv)):
        parser.error(useless)
    try:
        if arguments.trace:
            timeline = timeline_of(json.loads(arguments.trace.read_text()))
        else:
            chosen = _workload(arguments)
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        parser.error(str(error))
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.trace:
        return _draw(timeline, arguments)
    if arguments.ncu:
        try:
            print(profile_with_ncu(chosen, arguments.out))
        except NcuError as error:
            print(f"fa4 profile: {error}", file=sys.stderr)
            return 1
        return 0
    if arguments.gpu:
        timeline = record(chosen, arguments.records)
    else:
        timeline = emulate(chosen, arguments.ctas)
    return write(timeline, arguments)


def write(timeline: Timeline, arguments: argparse.Namespace) -> int:
    """The table on the screen, and `timeline.txt`, `.json` (the trace) and `.png` in the folder."""
    text = shares_text(timeline)
    print(text)
    table, trace = (arguments.out / f"timeline.{suffix}" for suffix in ("txt", "json"))
    shown = _first_ctas(timeline, arguments.ctas)
    table.write_text(text + "\n")
    trace.write_text(json.dumps(trace_events(shown)))
    print(f"\nWritten: {table}, {trace} (open it at https://ui.perfetto.dev)")
    return _draw(shown, arguments)


def _draw(timeline: Timeline, arguments: argparse.Namespace) -> int:
    picture = arguments.out / "timeline.png"
    try:
        draw(timeline, picture, 0, arguments.span)
    except PlotExtraMissingError as error:
        print(f"fa4 profile: {error}", file=sys.stderr)
        return 1
    print(f"Written: {picture}")
    return 0


def _first_ctas(timeline: Timeline, count: int) -> Timeline:
    """The trace of a whole GPU would be too large to open."""
    return replace(
        timeline,
        tracks=tuple(track for track in timeline.tracks if track.cta < count),
        waits=tuple(wait for wait in timeline.waits if wait.cta < count),
    )


def _workload(arguments: argparse.Namespace) -> Workload:
    on_gpu = arguments.gpu or arguments.ncu
    problem = problem_of(arguments, **sizes_of(arguments, on_gpu))
    if not on_gpu:
        return workload(problem, arguments.arch or "sm_100a", torch.device("cpu"))
    device, arch = this_gpu()
    if arguments.arch not in (None, arch):
        raise ValueError(f"--arch {arguments.arch}, but {torch.cuda.get_device_name()} is {arch}")
    return workload(problem, arch, device)


def _given(parser: argparse.ArgumentParser, argv: list[str]) -> set[str]:
    """The options that stand in argv, with a default or another value."""
    absent = object()
    blank = argparse.Namespace(**dict.fromkeys(vars(parser.parse_args(argv)), absent))
    found = parser.parse_args(argv, blank)
    return {name for name, value in vars(found).items() if value is not absent}


def _useless(arguments: argparse.Namespace, given: set[str]) -> str:
    """Names the options given that would have no effect; empty if all have one."""
    if arguments.trace:
        useless, why = given - DRAWING, "with --trace: it runs nothing"
    elif arguments.ncu:
        useless, why = given & (RECORDING | SHOWING), "with --ncu"
    elif not arguments.gpu:
        useless, why = given & RECORDING, "without --gpu"
    else:
        return ""
    names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(useless))
    return f"no effect {why}: leave out {names}" if useless else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fa4 profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--gpu", action="store_true", help="record the mbarrier waits on this GPU")
    where.add_argument("--ncu", action="store_true", help="sample with Nsight Compute on this GPU")
    where.add_argument(
        "--trace", type=Path, metavar="FILE", help="run nothing, draw this timeline.json"
    )
    parser.add_argument("--arch", choices=("sm_90a", "sm_100a"), help="emulated; default sm_100a")
    add_kernel_options(parser)
    add_size_options(parser)
    parser.add_argument(
        "--ctas", type=positive, default=1, help="in the trace, and SMs emulated (1)"
    )
    parser.add_argument(
        "--records",
        type=_power_of_two,
        default=RECORDS,
        help=f"--gpu: kept per warp, default {RECORDS}",
    )
    parser.add_argument(
        "--span", type=int, nargs=2, metavar=("BEGIN", "END"), help="part of the time to draw"
    )
    parser.add_argument(
        "--out", type=output_folder, required=True, metavar="DIR", help="for the results"
    )
    return parser


def _power_of_two(text: str) -> int:
    number = positive(text)
    if number & (number - 1):
        raise argparse.ArgumentTypeError(f"{text} is no power of two")
    return number
