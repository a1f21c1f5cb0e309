"""`fa4 verify`: climb the ladder of evidence with every kernel variant, print one table."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fa4._version import __version__
from fa4.on_hopper.modes import MODES
from fa4.profile.table import table
from fa4.variants import HEAD_DIMS, Variant, variants
from fa4.verify import ladder
from fa4.verify.ladder import ON_HOPPER, Effort, Outcome
from fa4.verify.workers import DIED, Climbed, climb_all

WHAT = {
    "compiled": "no spills, no stack, register budgets honoured",
    "emulated": "against float32, as the error rule of fa4.reference says",
    "hostile schedules": "late, random, priorities: the bits of the early one",
    "checked": "no race, no missing fence or wait",
    ON_HOPPER: {
        "sm_100a": "software tensor memory, TMA and mbarriers real, all modes",
        "sm_90a": "native, against float32",
    },
}


def verify_main(argv: list[str]) -> int:
    """Run the command; 1 when some kernel failed a rung or was not climbed."""
    options = parse(argv)
    chosen = [v for arch in options.arch for v in variants(arch) if options.match in str(v)]
    if not chosen:
        print(f"fa4 verify: no kernel's name contains {options.match!r}", file=sys.stderr)
        return 2
    rungs = tuple(ladder.RUNGS)
    rungs = rungs[: rungs.index(options.up_to) + 1]
    absent = {rung: why for rung in rungs if (why := ladder.missing(rung))}
    possible = tuple(rung for rung in rungs if rung not in absent)
    effort = Effort(options.schedules, options.launches)
    begin, climbed = time.monotonic(), {}
    for variant, outcomes in climb_all(chosen, possible, effort, options.jobs):
        climbed[variant] = outcomes
        _progress(variant, outcomes, len(climbed), len(chosen), time.monotonic() - begin)
    climbed |= {variant: {} for variant in chosen if variant not in climbed}
    if options.json:
        options.json.write_text(json.dumps(as_json(climbed, absent, effort), indent=1) + "\n")
    print(text(climbed, rungs, absent))
    return 1 if any(failed(outcomes) or not outcomes for outcomes in climbed.values()) else 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Options; wrong ones end the program."""
    parser = argparse.ArgumentParser(prog="fa4 verify", description=__doc__)
    parser.add_argument("--arch", nargs="+", choices=HEAD_DIMS, default=list(HEAD_DIMS))
    parser.add_argument("--match", default="", help="only kernels with this in their name")
    parser.add_argument("--up-to", choices=ladder.RUNGS, default=list(ladder.RUNGS)[-1])
    parser.add_argument(
        "--schedules", type=_positive, default=Effort.schedules, help="seeds of each random kind"
    )
    parser.add_argument(
        "--launches",
        type=_positive,
        default=Effort.launches,
        help=f"of each kernel on a GPU; of sm_100a at least {len(MODES)}, one in each mode",
    )
    parser.add_argument(
        "--jobs", type=_positive, default=os.cpu_count() or 1, help="processes (default: cores)"
    )
    parser.add_argument("--json", type=Path, help="write what every kernel did to this file")
    options = parser.parse_args(argv)
    on_gpu = options.up_to == ON_HOPPER and "sm_100a" in options.arch
    if on_gpu and options.launches < len(MODES):
        parser.error(
            f"--launches {options.launches}: sm_100a runs in {len(MODES)} modes on Hopper "
            f"({', '.join(MODES)}); take {len(MODES)} or more, or --arch sm_90a"
        )
    return options


def failed(outcomes: dict[str, Outcome]) -> str:
    """The rung that a kernel failed; empty if none."""
    return next((rung for rung, outcome in outcomes.items() if outcome.failure), "")


def text(climbed: Climbed, rungs: tuple[str, ...], absent: dict[str, str]) -> str:
    """The table, one line per architecture and rung, and what it means for what was not done."""
    rows = []
    for arch in dict.fromkeys(variant.arch for variant in climbed):
        mine = {v: o for v, o in climbed.items() if v.arch == arch}
        rows += [_row(arch, rung, mine, absent) for rung in rungs]
    lines = [table("arch | rung | what was run | kernels | runs | failed | first failure", rows)]
    lines += [f"Not climbed: {rung}, {why}." for rung, why in absent.items()]
    lines += [f"Its process died: {v}." for v, outcomes in climbed.items() if DIED in outcomes]
    if left := [str(variant) for variant, outcomes in climbed.items() if not outcomes]:
        lines.append(f"Not climbed, as every process had ended: {', '.join(left)}.")
    if "sm_100a" in {variant.arch for variant in climbed}:
        lines.append("No rung is a run on a Blackwell GPU.")
    return "\n".join(lines)


def _row(arch: str, rung: str, climbed: Climbed, absent: dict[str, str]) -> list[object]:
    what = WHAT[rung] if isinstance(WHAT[rung], str) else WHAT[rung][arch]
    if rung in absent:
        return [arch, rung, what, "-", "-", "-", absent[rung]]
    done = {variant: o[rung] for variant, o in climbed.items() if rung in o}
    faults = [f"{variant.plan.name}: {o.failure}" for variant, o in done.items() if o.failure]
    first = " ".join(faults[0].split())[:200] if faults else "none"
    kernels = f"{len(done)}/{len(climbed)}"
    return [arch, rung, what, kernels, sum(o.runs for o in done.values()), len(faults), first]


def as_json(climbed: Climbed, absent: dict[str, str], effort: Effort) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "fa4": __version__,
        "effort": asdict(effort),
        "not_climbed": absent,
        "kernels": [
            {
                **asdict(variant),
                "name": variant.plan.name,
                "climbed": bool(outcomes),
                "failed": failed(outcomes),
                "rungs": {rung: asdict(outcome) for rung, outcome in outcomes.items()},
            }
            for variant, outcomes in climbed.items()
        ],
    }


def _progress(
    variant: Variant, outcomes: dict[str, Outcome], number: int, total: int, seconds: float
) -> None:
    rung = failed(outcomes)
    state = f"FAILED {rung}: {outcomes[rung].failure}" if rung else "ok"
    print(f"{number}/{total} {variant} {state} ({seconds:.0f} s)", file=sys.stderr, flush=True)


def _positive(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word} is not positive")
    return number
