"""`python -m bench static`: SASS counts and modelled cycles, ours beside other kernels'."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from bench import peers
from bench.anchors import ANCHORS
from bench.cases import CASES, Case
from bench.progress import progress
from bench.results import save
from fa4.compile import artifacts
from fa4.profile.elf import read_toolchain
from fa4.profile.limits import MMA_PER_32, SOFTMAX_MASKED, SOFTMAX_UNMASKED
from fa4.profile.pipes import Step
from fa4.profile.report_text import SOFTMAX_HEADER, softmax_cells
from fa4.profile.static import analyse
from fa4.profile.summary import Summary, summarise
from fa4.profile.table import table

KERNEL_HEADER = "kernel | registers | stack | spills | MMA per 32 | executed | correction"
STEP_HEADER = "modelled cycles | MMA | MUFU | issue | FMA | ALU | fullest pipe"


def main(argv: list[str]) -> int:
    """Print the tables and save `results/static.json`."""
    parser = argparse.ArgumentParser(prog="python -m bench static", description=__doc__)
    parser.add_argument("--no-peers", action="store_true", help="only ours and the known anchors")
    arguments = parser.parse_args(argv)
    absent = "not asked for" if arguments.no_peers else peers.missing()
    kernels, ptxas = compile_all(with_peers=not absent)
    print(tables(kernels))
    if absent:
        print(f"\nflash-attn-4 was not compiled ({absent}). Known counts:\n\n{anchors_text()}")
    rows = [{"kernel": name, **asdict(summary)} for name, summary in kernels.items()]
    print(f"\nSaved {save('static', rows, ptxas).name}; ptxas {ptxas}")
    return 0


def compile_all(with_peers: bool) -> tuple[dict[str, Summary], str]:
    """Summaries by kernel name, ours first in each case, and the ptxas version."""
    kernels: dict[str, Summary] = {}
    ptxas = ""
    for case in progress(CASES, "compiling"):
        cubin = artifacts(case.plan()).cubin
        ptxas = read_toolchain(cubin)
        kernels[f"fa4 {case}"] = _summary(cubin, case)
        if with_peers:
            kernels[f"flash-attn-4 {case}"] = _summary(peers.compile_peer(case), case)
    return kernels, ptxas


def tables(kernels: dict[str, Summary]) -> str:
    """Softmax loops, the rest of the kernel, modelled cycles."""
    softmax = [
        softmax_cells(f"{name}, {kind}", row)
        for name, summary in kernels.items()
        for kind, row in (("unmasked", summary.unmasked), ("masked", summary.masked))
        if row
    ]
    return "\n\n".join(
        (
            table(SOFTMAX_HEADER, softmax),
            f"Limits at d128: {SOFTMAX_UNMASKED} unmasked, {SOFTMAX_MASKED} masked, "
            f"{MMA_PER_32} per 32 MMAs",
            table(KERNEL_HEADER, [_kernel_cells(name, row) for name, row in kernels.items()]),
            "Modelled, not measured: cycles per sub-partition and 256x128 step from SASS counts",
            table(
                STEP_HEADER,
                [step_cells(name, row.step) for name, row in kernels.items() if row.step],
            ),
        )
    )


def step_cells(name: str, step: Step) -> tuple[object, ...]:
    """Cells of one line under STEP_HEADER."""
    return (name, step.mma, step.mufu, step.issue, step.fma, step.alu, step.bound)


def anchors_text() -> str:
    """The known counts with their sources."""
    header = "kernel | unmasked | masked | EX2 | emulated | MMA per 32 | correction | source"
    rows = [
        ["-" if cell is None else cell for cell in asdict(anchor).values()] for anchor in ANCHORS
    ]
    return table(header, rows)


def _summary(cubin: bytes, case: Case) -> Summary:
    return summarise(analyse(cubin), case.plan())


def _kernel_cells(name: str, row: Summary) -> tuple[object, ...]:
    rounded = (row.mma_per_32, row.mma_executed_per_32, row.correction)
    return (
        name,
        row.registers,
        row.stack,
        row.spills,
        *("-" if value is None else f"{value:.0f}" for value in rounded),
    )
