"""What a run leaves behind: JSON with everything, the tables as text, a plot."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.hopper.cells import length_name
from bench.hopper.implementations import package_version
from bench.hopper.measure import OK, Measurement
from bench.hopper.summary import FORWARD_GOALS, Goals, ratio, summarise
from bench.results import DIGITS, provenance

SCHEMA = 1
PACKAGES = (
    "torch",
    "triton",
    "flash-attn-4",
    "vllm",
    "nvidia-cutlass-dsl",
    "apache-tvm-ffi",
    "numpy",
)
CARD = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu"


def environment() -> dict[str, Any]:
    """Date, fingerprint of the kernels, GPU, versions, and the card's state by nvidia-smi.

    None for the unknown; ask when all that is measured is loaded. Older files have no fingerprint
    and no libraries.
    """
    gpu = torch.cuda.is_available()
    return {
        **provenance(),
        "gpu": torch.cuda.get_device_name() if gpu else None,
        "capability": list(torch.cuda.get_device_capability()) if gpu else None,
        "versions": {
            **{name: package_version(name) for name in PACKAGES},
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "fa4": _own_version(),
        },
        "libraries": loaded_libraries(),
        "card": card_state(),
    }


def loaded_libraries() -> dict[str, dict[str, Any]]:
    """Size and digest of the kernel libraries that were loaded by path, by file name.

    Of FlashAttention-3, which may come without the package that it belongs to, nothing else says
    which one it is.
    """
    found = {}
    for path in map(Path, sorted(torch.ops.loaded_libraries)):
        code = path.read_bytes()
        digest = hashlib.sha256(code).hexdigest()[:DIGITS]
        found[path.name] = {"bytes": len(code), "sha256": digest}
    return found


def card_state() -> dict[str, str] | None:
    """Driver, clocks (MHz), power (W) and temperature (C); reads only."""
    command = ["nvidia-smi", f"--query-gpu={CARD}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    values = done.stdout.strip().split(", ")
    return dict(zip(CARD.split(","), values, strict=False))


def content(
    run: dict[str, Any],
    measurements: Sequence[Measurement],
    left: Sequence[str],
    stopped: str,
    goals: Goals = FORWARD_GOALS,
) -> dict[str, Any]:
    """The JSON of a run. `run`: environment and options; `left`: cells not measured, and why."""
    return {
        "schema": SCHEMA,
        **run,
        "cells": [_cell(measurement) for measurement in measurements],
        "summary": asdict(summarise(measurements, goals)),
        "left": list(left),
        "stopped": stopped or None,
    }


def save(folder: Path, name: str, text: str) -> Path:
    """Write a file of a run; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text + "\n", encoding="utf-8")
    return path


def save_json(folder: Path, data: dict[str, Any]) -> Path:
    """`hopper.json`, written anew after every cell: what is measured survives an abort."""
    return save(folder, "hopper.json", json.dumps(data, indent=1))


def save_plot(folder: Path, measurements: Sequence[Measurement]) -> Path | None:
    """TFLOPS over length, one panel a group; None without matplotlib or measurements."""
    if find_spec("matplotlib") is None or not measurements:
        return None
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(m.cell.group for m in measurements))
    columns = 2 if len(groups) > 1 else 1
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(5 * columns, 3 * rows), layout="constrained")
    for axes, group in zip(
        figure.subplots(rows, columns, squeeze=False).flat, groups, strict=False
    ):
        line = [m for m in measurements if m.cell.group == group]
        for name in line[0].outcomes:
            good = [m for m in line if m.outcomes[name].status == OK]
            axes.plot(
                [length_name(m.cell.length) for m in good],
                [m.outcomes[name].tflops for m in good],
                marker="o",
                label=name,
            )
        axes.set(title=group, ylabel="TFLOPS", ylim=(0, None))
        axes.legend(fontsize="small")
    path = folder / "hopper.png"
    figure.savefig(path, dpi=120)
    return path


def _cell(measurement: Measurement) -> dict[str, Any]:
    cell = measurement.cell
    return {
        "name": str(cell),
        **asdict(cell),
        "batch": cell.batch,
        "flops": cell.flops,
        "gemm_tflops": measurement.gemm_tflops,
        "clock_mhz": measurement.clock_mhz,
        "ratio": ratio(measurement),
        "implementations": {name: asdict(o) for name, o in measurement.outcomes.items()},
    }


def _own_version() -> str:
    from fa4 import __version__

    return __version__
