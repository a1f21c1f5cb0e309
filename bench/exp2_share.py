"""`python -m bench exp2-share`: what each share of emulated exponentials compiles to.

The share is a plan parameter per head dim. More emulation relieves MUFU and costs instructions and
registers; ptxas schedules some shares badly or spills: this table is what the choice rests on.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace

from bench.cases import DIMS, Case
from bench.progress import progress
from bench.results import save
from fa4.compile import artifacts
from fa4.plan_blackwell import BlackwellPlan
from fa4.profile.elf import read_toolchain
from fa4.profile.options import positive
from fa4.profile.static import analyse
from fa4.profile.summary import Summary, summarise
from fa4.profile.table import table

SHARES = (0, 8, 16, 24, 32, 40, 48)
HEADER = (
    "kernel | emulated of 128 | shipped | unmasked | masked | executed | EX2 | registers | stack"
    " | spills | MMA | MUFU | issue | FMA | ALU | fullest"
)


@dataclass(frozen=True)
class Point:
    """One kernel to compile: `share` of its 128 exponentials emulated."""

    case: Case
    share: int

    def __str__(self) -> str:
        return f"{self.case}, {self.share} of 128"


def main(argv: list[str]) -> int:
    """Print the table and save `results/exp2_share.json`."""
    parser = argparse.ArgumentParser(prog="python -m bench exp2-share", description=__doc__)
    parser.add_argument(
        "--shares", type=int, nargs="+", default=SHARES, help="multiples of 8, 0 to 128"
    )
    tuned = [head_dim for head_dim, _ in DIMS]
    parser.add_argument(
        "--head-dims", type=positive, nargs="+", choices=tuned, help="default: all that are tuned"
    )
    arguments = parser.parse_args(argv)
    cases = [Case(d, dv, causal=True) for d, dv in DIMS if d in (arguments.head_dims or [d])]
    points = [Point(case, share) for case in cases for share in arguments.shares]
    rows, ptxas = [], ""
    for point in progress(points, "compiling"):
        case, share, plan = point.case, point.share, point.case.plan()
        cubin = artifacts(with_share(plan, share)).cubin
        ptxas = read_toolchain(cubin)
        summary = summarise(analyse(cubin), plan)
        rows.append((case, share, share == plan.tuning.exp2_emulated, summary))
    print("Modelled, not measured: cycles per sub-partition and 256x128 step, on the right\n")
    print(table(HEADER, [_cells(*row) for row in rows]))
    saved = [
        {"kernel": str(case), "emulated": share, "shipped": shipped, **asdict(summary)}
        for case, share, shipped, summary in rows
    ]
    print(f"\nSaved {save('exp2_share', saved, ptxas).name}; ptxas {ptxas}")
    return 0


def with_share(plan: BlackwellPlan, share: int) -> BlackwellPlan:
    """The plan with `share` of 128 exponentials on the FMA units; ValueError if it cannot be."""
    changed = replace(plan, tuning=replace(plan.tuning, exp2_emulated=share))
    changed.check()
    return changed


def _cells(case: Case, share: int, shipped: bool, row: Summary) -> tuple[object, ...]:
    if row.unmasked is None or row.step is None:
        raise ValueError(f"no softmax or correction loop was found in the kernel of {case}")
    masked, step = row.masked, row.step
    return (
        case,
        share,
        "*" if shipped else "",
        f"{row.unmasked.instructions:.0f}",
        f"{masked.instructions:.0f}" if masked else "-",
        f"{masked.executed[0]:.0f}..{masked.executed[1]:.0f}" if masked else "-",
        f"{row.unmasked.ex2:.0f}",
        row.registers,
        row.stack,
        row.spills,
        step.mma,
        step.mufu,
        step.issue,
        step.fma,
        step.alu,
        step.bound,
    )
