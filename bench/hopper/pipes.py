"""`python -m bench pipes`: what keeps a cell of the grid from being faster, by Nsight Compute.

For ours and the best peer of each cell: the share of their peaks at which the tensor cores, MUFU,
the issue slots, shared memory and DRAM run, and why warps wait. Cells are those below their aim.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from bench.hopper import cells, files
from bench.hopper.cells import Cell
from bench.hopper.implementations import OURS, Implementation, implementations
from bench.hopper.passes import FORWARD
from bench.results import FOLDER
from fa4.profile.ncu import NcuError, find_ncu, import_page, run_ncu
from fa4.profile.ncu_report import parse_raw
from fa4.profile.options import output_folder
from fa4.profile.table import table

# Ratios to the best peer that a prototype of the frozen reference reached, by length
AIMS = {
    "d64 full": (1.20, 1.25, 1.15, 1.12, 1.07, 1.06),
    "d64 causal": (1.28, 1.33, 1.36, 1.26, 1.15, 1.11),
    "d128 full": (1.08, 1.16, 1.18, 1.13, 1.11, 1.10),
    "d128 causal": (1.15, 1.26, 1.25, 1.18, 1.16, 1.13),
    "d256 full": (1.04, 1.03, 1.03, 1.03, 1.01, 1.00),
    "d256 causal": (1.09, 1.16, 1.07, 1.04, 1.02, 1.00),
}
PIPES = {
    "ns": "gpu__time_duration.sum",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "MUFU": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smem": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",
    "DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
REASONS = (
    *("barrier", "branch_resolving", "dispatch_stall", "gmma", "long_scoreboard"),
    *("math_pipe_throttle", "mio_throttle", "no_instruction", "not_selected", "selected"),
    *("short_scoreboard", "sleeping", "wait"),
)
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# All but FA3's prepare_varlen_num_blocks_kernel; lookahead is not in every regular expression
ATTENTION = "^([^p]|p[^r]).*"
WARM_UP = 3  # launches before the one that is profiled
SHOWN = 4  # stall reasons of a line


def main(argv: list[str]) -> int:
    """Profile, print and save."""
    parser = argparse.ArgumentParser(prog="python -m bench pipes", description=__doc__)
    parser.add_argument("--cells", nargs="+", metavar="CELL", help='such as "d64 full 8k"')
    parser.add_argument("--out", type=output_folder, default="out", help="folder for the results")
    parser.add_argument("--launch", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("No CUDA device here: this command profiles kernels on a GPU.")
        return 2
    if options.launch:
        return launch(options.launch)
    try:
        pairs = chosen(json.loads((FOLDER / "hopper.json").read_text())["cells"], options.cells)
        refuse_missing(pairs, implementations())
        rows = profile(pairs, options.out)
    except (NcuError, ValueError) as error:
        print(error)
        return 1
    files.save(options.out, "pipes.json", json.dumps({**files.environment(), "rows": rows}))
    print(files.save(options.out, "pipes.txt", report(rows)).read_text())
    return 0


def chosen(measured: Sequence[Mapping[str, Any]], names: Sequence[str] | None) -> list[list[str]]:
    """(cell, implementation): ours and the best peer, of the named cells or of all below aim."""
    by_name = {cell["name"]: cell for cell in measured}
    if unknown := set(names or ()) - set(by_name):
        raise ValueError(f"unknown cells: {', '.join(unknown)}; there are {', '.join(by_name)}")
    found = names or [name for name, cell in by_name.items() if below_aim(cell)]
    return [[name, who] for name in found for who in (OURS, _best_peer(by_name[name]))]


def below_aim(cell: Mapping[str, Any]) -> bool:
    """Whether a measured cell has an aim and its ratio, rounded as it is shown, is under it."""
    group = cell["name"].rsplit(" ", 1)[0]
    aims = dict(zip(cells.LENGTHS, AIMS.get(group, ()), strict=False))
    return round(cell["ratio"], 2) < aims.get(cell["length"], 0.0)


def _best_peer(cell: Mapping[str, Any]) -> str:
    times = {name: i["ms"] for name, i in cell["implementations"].items() if i["ms"]}
    peers = times.keys() - {OURS}
    if not peers:
        raise ValueError(f"{cell['name']}: no peer was measured; install the extra `peers`.")
    return min(peers, key=times.__getitem__)


def refuse_missing(pairs: Sequence[Sequence[str]], known: Sequence[Implementation]) -> None:
    """Raises ValueError for a pair whose implementation cannot run here."""
    missing = {implementation.name: implementation.missing for implementation in known}
    for cell, who in pairs:
        if missing[who]:
            raise ValueError(f"{who}, the best peer of {cell}, is missing: {missing[who]}")


def profile(pairs: list[list[str]], out: Path) -> list[dict[str, Any]]:
    """One ncu run over one process that launches every pair. Raises NcuError."""
    out.mkdir(parents=True, exist_ok=True)
    metrics = (*PIPES.values(), *(STALL.format(reason) for reason in REASONS))
    report_file, ncu = out / "pipes.ncu-rep", find_ncu()
    run_ncu(
        [
            *(ncu, "--profile-from-start", "off", "--metrics", ",".join(metrics)),
            *("--kernel-name", f"regex:{ATTENTION}"),
            *("--clock-control", "none", "--force-overwrite", "--export", str(report_file)),
            *(sys.executable, "-W", "ignore", "-m", "bench", "pipes"),
            *("--launch", json.dumps(pairs)),
        ]
    )
    kernels = parse_raw(import_page(ncu, report_file, "raw", "--print-units", "base"))
    if len(kernels) != len(pairs):
        raise NcuError(f"{len(kernels)} kernels were profiled where {len(pairs)} were launched")
    return [
        {"cell": cell, "implementation": who, **_row(kernel)}
        for (cell, who), kernel in zip(pairs, kernels, strict=True)
    ]


def _row(kernel: Mapping[str, float]) -> dict[str, Any]:
    if missing := sorted(set(PIPES.values()) - set(kernel)):
        raise NcuError(f"ncu measured no {', '.join(missing)}: has it a version for this GPU?")
    stalls = {r: kernel[STALL.format(r)] for r in REASONS if STALL.format(r) in kernel}
    total = sum(stalls.values())
    return {
        **{name: kernel[metric] for name, metric in PIPES.items()},
        "stalls": {reason: 100 * value / total for reason, value in stalls.items()},
    }


def launch(pairs: Sequence[Sequence[str]]) -> int:
    """What runs under ncu: one profiled launch per pair."""
    grid = {str(cell): cell for cell in cells.grid()}
    known = {implementation.name: implementation for implementation in implementations()}
    for name, who in pairs:
        cell: Cell = grid[name]
        call = known[who].bind(FORWARD.inputs(cell, torch.bfloat16, "cuda", None), cell.causal)
        with ExitStack() as stack:
            stack.enter_context(known[who].context())
            for _ in range(WARM_UP):
                call()
            torch.cuda.synchronize()
            stack.enter_context(torch.cuda.profiler.profile())
            call()
            torch.cuda.synchronize()
    return 0


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line per launch; stalls are shares of all warps' cycles."""
    command = shlex.join(["python", "-m", "bench", "pipes"])
    title = f"Percent of the peaks, and of warps' cycles by what they wait for ({command})"
    lines = [
        (
            row["cell"],
            row["implementation"],
            f"{row['ns'] / 1e3:.0f}",
            *(f"{row[name]:.0f}" for name in tuple(PIPES)[1:]),
            "  ".join(f"{reason} {share:.0f}" for reason, share in _most(row["stalls"])),
        )
        for row in rows
    ]
    return (
        f"{title}\n{table(' | '.join(('cell', 'whose', 'us', *tuple(PIPES)[1:], 'stalls')), lines)}"
    )


def _most(stalls: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(stalls.items(), key=lambda item: -item[1])[:SHOWN]
