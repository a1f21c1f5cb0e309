"""`fa4 inspect`: what the compiler made of each warp role of a kernel."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from fa4.compile import Artifacts, artifacts
from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.profile.disassembler import disassemble, find_nvdisasm
from fa4.profile.options import add_kernel_options, output_folder, problem_of
from fa4.profile.report import report
from fa4.profile.report_text import report_text


def inspect_main(argv: list[str]) -> int:
    """Compile one plan and print its report; returns 0. Exits with 2 for a shape without kernel."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        planned = plan_backward if arguments.backward else plan_forward
        plan = planned(problem_of(arguments), arguments.arch)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    made = artifacts(plan)
    found = report(plan, made)
    if arguments.keep:
        kept = keep(made, arguments.keep)
    if arguments.json:
        print(json.dumps(asdict(found), indent=1))
        return 0
    print(report_text(found))
    if arguments.keep:
        print("\nKept: " + ", ".join(map(str, kept)))
    return 0


def keep(made: Artifacts, folder: Path) -> list[Path]:
    """Write PTX, cubin and, with nvdisasm, SASS into `folder`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"ptx": made.ptx.encode(), "cubin": made.cubin}
    if find_nvdisasm():
        contents["sass"] = disassemble(made.cubin).encode()
    paths = []
    for suffix, data in contents.items():
        paths.append(folder / f"{made.kernel_name}.{suffix}")
        paths[-1].write_bytes(data)
    return paths


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fa4 inspect", description=__doc__)
    parser.add_argument("--arch", default="sm_100a", help="default sm_100a")
    parser.add_argument("--backward", action="store_true", help="the main kernel of the gradient")
    add_kernel_options(parser)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument(
        "--keep", type=output_folder, metavar="FOLDER", help="write PTX, cubin and SASS"
    )
    return parser
