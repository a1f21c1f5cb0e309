"""Runs Nsight Compute on one launch and reads its report back, by warp role."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fa4.compile import artifacts
from fa4.profile.disassembler import DisassemblerMissingError, disassemble
from fa4.profile.ncu_report import ReportMismatchError, by_role, report_text
from fa4.profile.options import command_options
from fa4.profile.sass import parse_sass
from fa4.profile.workload import Workload

REPORT = "kernel.ncu-rep"
_HOW = "install Nsight Compute (it comes with the CUDA toolkit), set CUDA_HOME, or put ncu on PATH"
_PERMISSION = "ERR_NVGPUCTRPERM"
_LET_IN = (
    "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM). Run as root, or "
    "have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0; in a container add "
    "--cap-add=SYS_ADMIN. See https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)


class NcuError(RuntimeError):
    """Nsight Compute is missing or failed; the message says what to do."""


def profile_with_ncu(workload: Workload, out: Path) -> str:
    """Sample the second launch of a workload; returns the table and the commands to go on with.

    Leaves `kernel.ncu-rep`, `source.csv`, `raw.csv` and `ncu.txt` in `out`. Raises NcuError.
    """
    ncu, report = find_ncu(), out / REPORT
    command = sampling_command(ncu, workload, report)
    run_ncu(command)
    if not report.is_file():
        raise NcuError(f"ncu wrote no report to {report}; it was run as: {shlex.join(command)}")
    source = import_page(ncu, report, "source", "--print-source", "sass")
    raw = import_page(ncu, report, "raw")
    (out / "source.csv").write_text(source)
    (out / "raw.csv").write_text(raw)
    text = f"{workload.title}\n{_table(workload, source, raw)}\n\n{_how_to_go_on(command, report)}"
    (out / "ncu.txt").write_text(text + "\n")
    return text


def sampling_command(ncu: str, workload: Workload, report: Path) -> list[str]:
    """The ncu command line: everything about one launch, after one to warm up."""
    return [
        *(ncu, "--set", "full", "--import-source", "yes", "--nvtx"),
        *("--kernel-name", f"regex:^{workload.plan.name}", "--launch-skip", "1"),
        *("--launch-count", "1", "--force-overwrite", "--export", str(report)),
        *(sys.executable, "-m", "fa4.profile.run", *command_options(workload.problem)),
    ]


def find_ncu() -> str:
    """Path of the ncu to use. Raises NcuError."""
    for candidate in _candidates():
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    raise NcuError(f"ncu not found: {_HOW}")


def _candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin" / "ncu"
    if on_path := shutil.which("ncu"):
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/ncu")
    yield from sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)


def run_ncu(command: list[str]) -> str:
    """What a command of ncu prints. Raises NcuError."""
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if _PERMISSION in said:
        raise NcuError(_LET_IN)
    if done.returncode or "No kernels were profiled" in said:
        last = "\n".join(said.strip().splitlines()[-15:])
        raise NcuError(f"ncu failed (exit code {done.returncode}): {shlex.join(command)}\n{last}")
    return done.stdout


def import_page(ncu: str, report: Path, page: str, *options: str) -> str:
    """A page of a report as CSV. Raises NcuError."""
    return run_ncu([ncu, "--import", str(report), "--page", page, *options, "--csv"])


def _table(workload: Workload, source: str, raw: str) -> str:
    made = artifacts(workload.plan)
    try:
        functions = parse_sass(disassemble(made.cubin))
        kernel = next(f for f in functions if made.kernel_name in f.name)
        return report_text(by_role(kernel, source, raw))
    except (DisassemblerMissingError, ReportMismatchError) as error:
        raise NcuError(f"the report is written, but its samples have no roles: {error}") from error


def _how_to_go_on(command: list[str], report: Path) -> str:
    return (
        f"Sampled by: {shlex.join(command)}\n"
        f"Open it in Nsight Compute: ncu-ui {shlex.quote(str(report))}\n"
        "Its Source page shows samples per line of fa4/warps/ (one file per role)."
    )
