"""`fa4 verify`: climb the ladder of evidence with every kernel variant, print one table."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from fa4._version import __version__
from fa4.compile import PACKAGE, source_digest
from fa4.emulator.sessions import DEVICES
from fa4.on_hopper.modes import MODES
from fa4.profile.options import output_file, positive
from fa4.profile.table import table
from fa4.variants import HEAD_DIMS, Variant, variants
from fa4.verify import ladder
from fa4.verify.ladder import ON_HOPPER, Effort, Outcome
from fa4.verify.workers import DIED, Climbed, climb_all

WHAT = {
    "compiled": "no spills, no stack, register budgets honoured",
    "emulated": "errors as the rule of fa4.reference allows",
    "hostile schedules": "late, random, priorities: the bits of the early one",
    "checked": "no race, no missing fence or wait, ordered sums where promised",
    ON_HOPPER: {
        "sm_100a": "software tensor memory, all modes: errors as allowed, equal bits",
        "sm_90a": "native: errors as allowed, equal bits",
    },
}


RUN_HERE = [arch for arch in HEAD_DIMS if arch in DEVICES]  # emulated, so by all rungs


def verify_main(argv: list[str]) -> int:
    """Run the command; 1 when some kernel failed a rung or was not climbed."""
    options = parse(argv)
    chosen = [v for v in every_variant(options.arch) if options.match in str(v)]
    if not chosen:
        print(f"fa4 verify: no kernel's name contains {options.match!r}", file=sys.stderr)
        return 2
    rungs = options.rungs
    absent = {rung: why for rung in rungs if (why := ladder.missing(rung))}
    possible = tuple(rung for rung in rungs if rung not in absent)
    if not possible:
        print(f"fa4 verify: {', '.join(absent)}: {', '.join(absent.values())}", file=sys.stderr)
        return 2
    effort = Effort(options.schedules, options.launches)
    begin, climbed = time.monotonic(), {variant: {} for variant in chosen}
    for number, (variant, outcomes) in enumerate(
        climb_all(chosen, possible, effort, options.jobs), 1
    ):
        climbed[variant] = outcomes
        _progress(variant, outcomes, (number, len(chosen)), time.monotonic() - begin)
        if options.json:  # now: the machine may be taken away
            options.json.write_text(json.dumps(as_json(climbed, absent, effort), indent=1) + "\n")
    print(text(climbed, rungs, absent))
    return 1 if any(failed(outcomes) or not outcomes for outcomes in climbed.values()) else 0


def every_variant(archs: Sequence[str]) -> Iterator[Variant]:
    """Forward and backward of each architecture."""
    for arch in archs:
        for backward in (False, True):
            yield from variants(arch, backward)


def parse(argv: list[str]) -> argparse.Namespace:
    """Options; wrong ones end the program."""
    parser = argparse.ArgumentParser(prog="fa4 verify", description=__doc__)
    parser.add_argument("--arch", nargs="+", choices=HEAD_DIMS, default=RUN_HERE)
    parser.add_argument("--match", default="", help="only kernels with this in their name")
    parser.add_argument(
        "--start", choices=ladder.RUNGS, default=next(iter(ladder.RUNGS)), help="the first rung"
    )
    parser.add_argument("--up-to", choices=ladder.RUNGS, default=list(ladder.RUNGS)[-1])
    parser.add_argument(
        "--schedules", type=positive, default=Effort.schedules, help="seeds of each random kind"
    )
    parser.add_argument(
        "--launches",
        type=positive,
        default=Effort.launches,
        help=f"of each kernel on a GPU; of sm_100a at least {len(MODES)}, one in each mode",
    )
    parser.add_argument(
        "--jobs", type=positive, default=os.cpu_count() or 1, help="processes (default: cores)"
    )
    parser.add_argument("--json", type=output_file, help="write what every kernel did to this file")
    options = parser.parse_args(argv)
    rungs = list(ladder.RUNGS)
    options.rungs = tuple(rungs[rungs.index(options.start) : rungs.index(options.up_to) + 1])
    if not options.rungs:
        parser.error(f"--start {options.start!r} lies above --up-to {options.up_to!r}")
    compiled_only = [arch for arch in options.arch if arch not in RUN_HERE]
    if compiled_only and options.up_to != next(iter(ladder.RUNGS)):
        parser.error(
            f"--arch {' '.join(compiled_only)}: nothing here runs these kernels; "
            "add --up-to compiled"
        )
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
    """The table, one line per architecture, pass and rung, and what was not done."""
    groups: dict[tuple[str, str], Climbed] = {}
    for variant, outcomes in climbed.items():
        groups.setdefault((variant.arch, variant.direction), {})[variant] = outcomes
    rows = [_row(key, rung, mine, absent) for key, mine in groups.items() for rung in rungs]
    head = "arch | pass | rung | what was run | kernels | runs | failed | first failure"
    lines = [table(head, rows)]
    lines += [f"Not climbed: {rung}, {why}." for rung, why in absent.items()]
    lines += [f"Its process died: {v}." for v, outcomes in climbed.items() if DIED in outcomes]
    if left := [str(variant) for variant, outcomes in climbed.items() if not outcomes]:
        lines.append(f"Not climbed, as every process had ended: {', '.join(left)}.")
    if {"sm_100a", "sm_103a"} & {variant.arch for variant in climbed}:
        lines.append("No rung is a run on a Blackwell GPU.")
    return "\n".join(lines)


def _row(key: tuple[str, str], rung: str, climbed: Climbed, absent: dict[str, str]) -> list[object]:
    """key: architecture and direction."""
    what = WHAT[rung] if isinstance(WHAT[rung], str) else WHAT[rung][key[0]]
    if rung in absent:
        return [*key, rung, what, "-", "-", "-", absent[rung]]
    done = {variant: o[rung] for variant, o in climbed.items() if rung in o}
    faults = [f"{variant.plan.name}: {o.failure}" for variant, o in done.items() if o.failure]
    first = " ".join(faults[0].split())[:200] if faults else "none"
    kernels = f"{len(done)}/{len(climbed)}"
    return [*key, rung, what, kernels, sum(o.runs for o in done.values()), len(faults), first]


def as_json(climbed: Climbed, absent: dict[str, str], effort: Effort) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "fa4": __version__,
        "fingerprint": source_digest(PACKAGE)[:12],  # of the kernels' sources
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
    variant: Variant, outcomes: dict[str, Outcome], counts: tuple[int, int], seconds: float
) -> None:
    """counts: kernels that have climbed, all kernels."""
    number, total = counts
    rung = failed(outcomes)
    state = f"FAILED {rung}: {outcomes[rung].failure}" if rung else "ok"
    print(f"{number}/{total} {variant} {state} ({seconds:.0f} s)", file=sys.stderr, flush=True)
