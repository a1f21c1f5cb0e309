"""`python -m bench on-hopper`: Blackwell's kernels on this Hopper GPU."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import torch

from bench import processes
from bench.hopper.files import environment
from bench.on_hopper.trials import VARIANTS, Task, backward_trial, small_trial, variant_trial
from bench.on_hopper.work import work
from fa4.on_hopper.modes import MODES
from fa4.on_hopper.sessions import no_hopper
from fa4.profile.options import output_file, positive
from fa4.reference import AGREEING


def main(argv: list[str]) -> int:
    """Run, print and save; 1 when something failed or is left."""
    options = parse(argv)
    if why := no_hopper():
        print(f"This command runs kernels on a Hopper GPU: {why}.")
        return 2
    tasks = planned(options)
    begin = time.monotonic()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {len(tasks)} runs", flush=True
    )
    records = list(_shown(_results(options, tasks), len(tasks), begin))
    report = summary(records, len(tasks)) | {
        **environment(),
        "seconds": round(time.monotonic() - begin, 1),
        "seeds": [options.first, options.first + options.count - 1],
        "against_emulator": options.emulator,
    }
    if options.json:
        options.json.write_text(json.dumps(report | {"by_kernel": by_kernel(records)}) + "\n")
    print(json.dumps(report, indent=1))
    return 1 if report["failed"] or report["left"] or report.get("agreeing", 1) < AGREEING else 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Options; wrong ones end the program."""
    parser = argparse.ArgumentParser(prog="python -m bench on-hopper", description=__doc__)
    parser.add_argument("--count", type=positive, default=500, help="problems, each in every mode")
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--seconds", type=float, default=240.0, help="start nothing after this")
    parser.add_argument(
        "--jobs", type=positive, default=8, help="processes: kernels compile at once"
    )
    parser.add_argument(
        "--json", type=output_file, help="write this, and a line per kernel, to this file"
    )
    parser.add_argument(
        "--emulator", action="store_true", help="small problems, compared with the emulator too"
    )
    parser.add_argument("--backward", action="store_true", help="gradients too, compared alone")
    options = parser.parse_args(argv)
    if options.backward and options.emulator:
        parser.error("--emulator compares the forward pass: leave it out with --backward")
    return options


def planned(options: argparse.Namespace) -> list[Task]:
    """Every problem in every mode."""
    trial = small_trial if options.emulator else variant_trial
    if options.backward:
        trial = backward_trial
    seeds = range(options.first, options.first + options.count)
    return [Task(trial(seed), mode, options.backward) for seed in seeds for mode in options.modes]


def summary(records: list[dict[str, Any]], planned_runs: int) -> dict[str, Any]:
    """Counts by mode, the first failures, and the worst errors."""
    failed = [r for r in records if r["fault"]]
    emulated = [r for r in records if "agreeing" in r]
    elements = sum(r["elements"] for r in emulated)
    return {
        "ran": len(records),
        "failed": len(failed),
        "left": planned_runs - len(records),
        "by_mode": dict(Counter(r["mode"] for r in records)),
        "kernels": len({r["kernel"] for r in records if r.get("kernel")}),
        "longest_kernel_seconds": max((r.get("kernel_seconds", 0) for r in records), default=0),
        "kernel_seconds": round(sum(r.get("kernel_seconds", 0) for r in records), 1),
        **(
            {
                "agreeing": sum(r["agreeing"] * r["elements"] for r in emulated) / elements,
                "least_agreeing": min(r["agreeing"] for r in emulated),
                "largest_lse_apart": max(r["lse_apart"] for r in emulated),
            }
            if emulated
            else {}
        ),
        "faults": [f"{r['mode']} {r['seed']} {r['problem']}: {r['fault']}" for r in failed[:20]],
    }


def by_kernel(records: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Per kernel: its runs, its worst share of the error rule's limit, its least agreement."""
    found: dict[str, dict[str, float]] = {}
    for record in sorted((r for r in records if r.get("kernel")), key=itemgetter("kernel")):
        row = found.setdefault(record["kernel"], {"runs": 0, "error_of_limit": 0.0})
        row["runs"] += 1
        share = record["out_error"] / record["out_limit"]
        row["error_of_limit"] = max(row["error_of_limit"], round(share, 4))
        if "agreeing" in record:
            row["agreeing"] = min(row.get("agreeing", 1.0), round(record["agreeing"], 5))
    return found


def _results(options: argparse.Namespace, tasks: list[Task]) -> Iterator[dict[str, Any]]:
    """Records of all processes; a variant belongs to one, so that none is compiled twice."""
    shares = [
        [t for t in tasks if t.trial.seed % len(VARIANTS) % options.jobs == job]
        for job in range(options.jobs)
    ]
    given = [(share, options.seconds, options.emulator) for share in shares if share]
    return processes.records(work, given, options.seconds)


def _shown(
    records: Iterator[dict[str, Any]], planned_runs: int, begin: float
) -> Iterator[dict[str, Any]]:
    for number, record in enumerate(records, 1):
        if record["fault"]:
            print(f"FAIL {record['mode']} {record['problem']}: {record['fault']}", flush=True)
        if number % 50 == 0 or number == planned_runs:
            print(f"{number}/{planned_runs}, {time.monotonic() - begin:.0f} s", flush=True)
        yield record
