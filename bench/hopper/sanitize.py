"""`python -m bench sanitize`: small problems under compute-sanitizer on this GPU.

Every head dim, masked and not, with and without rows that a later block makes compute again, and
the plans of long sequences; with --backward gradients, deterministic and not.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import fa4
from bench.hopper.backward_implementations import ARCH
from bench.hopper.compiling import compile_plans
from bench.hopper.files import environment
from bench.hopper.sanitizer_log import KNOWN, parse_log
from fa4.plan import plan_forward
from fa4.plan_base import BasePlan
from fa4.problem import Problem
from fa4.profile.options import output_file
from fa4.variants import Variant, variants

# initcheck would see no write of torch's kernels, which are not looked at
TOOLS = ("memcheck", "racecheck", "synccheck")
MASKS = ("full", "causal", "window")
LOUD = 40.0  # times Q: a row's maximum jumps from block to block
SHOWN = 50  # findings in a file
LINES = 15  # of a run that did not end well
NAME = "compute-sanitizer"


class SanitizerError(RuntimeError):
    """compute-sanitizer cannot be run; the message says what to do."""


@dataclass(frozen=True)
class Case:
    """One call."""

    variant: Variant
    loud: bool

    def __str__(self) -> str:
        return f"{self.variant}{', computed again' if self.loud else ''}"

    @property
    def problem(self) -> Problem:
        """Three blocks of rows and of keys, or one of rows where a plan is for many keys."""
        if self.variant.keys > 1:
            return self.variant.problem(
                batch=1, heads_q=1, heads_kv=1, seqlen_q=130, seqlen_k=self.variant.keys + 2
            )
        return self.variant.problem(batch=2, heads_q=2, heads_kv=1, seqlen_q=300, seqlen_k=300)

    @property
    def plans(self) -> set[BasePlan]:
        """Those of both passes if it has a backward."""
        return {plan_forward(self.problem, self.variant.arch), self.variant.plan}


def cases(backward: bool) -> list[Case]:
    """All of one pass."""
    chosen = [
        variant
        for variant in variants(ARCH, backward)
        if variant.mask in MASKS and variant.dtype == "bfloat16" and not variant.softcap
    ]
    return [Case(v, loud) for v in chosen for loud in ((False,) if backward else (False, True))]


def main(argv: list[str]) -> int:
    """Run, print and save; 1 when a tool found an error or did not come to its end."""
    options = parse(argv)
    if not torch.cuda.is_available():
        print("No CUDA device here: this command runs kernels on a GPU.")
        return 2
    if options.launch:
        return launch(cases(options.launch == "backward"), "cuda")
    try:
        sanitizer = find_sanitizer()
    except SanitizerError as error:
        print(error)
        return 2
    passes = ("forward", "backward") if options.backward else ("forward",)
    plans = {plan for p in passes for case in cases(p == "backward") for plan in case.plans}
    if faults := compile_plans(plans):
        print("\n".join(faults))
        return 1
    rows = []
    for tool in options.tools:
        for which in passes:
            rows.append(run(sanitizer, tool, which, options.seconds))
            print(report(rows[-1]), flush=True)
    if options.json:
        command = shlex.join(["python", "-m", "bench", "sanitize", *argv])
        content = {**environment(), "command": command, "known": KNOWN, "runs": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(row["clean"] for row in rows) else 1


def parse(argv: list[str]) -> argparse.Namespace:
    """Options; wrong ones end the program."""
    parser = argparse.ArgumentParser(prog="python -m bench sanitize", description=__doc__)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=["memcheck", "racecheck"])
    parser.add_argument("--backward", action="store_true", help="the backward pass as well")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="end a tool that takes longer with a pass"
    )
    parser.add_argument("--json", type=output_file, help="file for the findings")
    parser.add_argument("--launch", choices=("forward", "backward"), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def find_sanitizer() -> str:
    """Path of the compute-sanitizer to use. Raises SanitizerError."""
    toolkits = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders = [
        *(f"{toolkit}/bin" for toolkit in toolkits),
        *os.environ.get("PATH", "").split(os.pathsep),
        "/usr/local/cuda/bin",
    ]
    found = shutil.which(NAME, path=os.pathsep.join(folders))
    if not found:
        raise SanitizerError(
            f"{NAME} not found: it comes with the CUDA toolkit; set CUDA_HOME or put it on PATH"
        )
    return found


def run(sanitizer: str, tool: str, which: str, seconds: float) -> dict[str, Any]:
    """All cases of a pass under one tool: what it found, and whether all ran."""
    command = [
        *(sanitizer, "--tool", tool, "--kernel-name", "kernel_substring=fa4"),
        *("--print-limit", "10000"),
        *(sys.executable, "-W", "ignore", "-m", "bench", "sanitize", "--launch", which),
    ]
    text, ended = _output(command, seconds)
    log, planned = parse_log(text), [str(case) for case in cases(which == "backward")]
    ran = [line for line in text.splitlines() if line in planned]
    complete = ended and log.total is not None and ran == planned
    return {
        "tool": tool,
        "pass": which,
        "cases": len(planned),
        "ran": len(ran),
        "clean": complete and log.errors == 0,
        "errors": log.errors if log.total is not None else None,
        "known": {
            "reports": len(log.known),
            "hazards": sum(finding.hazards for finding in log.known),
        },
        "findings": [f.text for f in log.findings if not f.known][:SHOWN],
        "known_findings": [f.text for f in log.known][:SHOWN],
        "stopped": None if complete else _why(ended, text, seconds),
    }


def _output(command: Sequence[str], seconds: float) -> tuple[str, bool]:
    """What it printed, and whether it came to its end in time."""
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(seconds)
            ended = True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the program that it runs
            process.wait()
            ended = False
        file.seek(0)
        return file.read().decode(errors="replace"), ended


def _why(ended: bool, text: str, seconds: float) -> str:
    what = "it ended early" if ended else f"it was ended after {seconds:.0f} s (--seconds)"
    return "\n".join([f"{what}:", *text.splitlines()[-LINES:]])


def report(row: dict[str, Any]) -> str:
    """The lines of one run."""
    errors = "no summary" if row["errors"] is None else f"{row['errors']} errors"
    lines = [f"{row['tool']}, {row['pass']}: {row['ran']} of {row['cases']} cases ran, {errors}"]
    if row["known"]["reports"]:
        lines.append(
            f"  {row['known']['reports']} reports of {row['known']['hazards']} hazards that are "
            f"none: {KNOWN}"
        )
    lines += [f"  {line}" for finding in row["findings"] for line in finding.splitlines()]
    return "\n".join([*lines, row["stopped"]] if row["stopped"] else lines)


def launch(chosen: Sequence[Case], device: str) -> int:
    """What runs under the tool; prints each case once it has ended."""
    for case in chosen:
        call(case, device)
        print(case, flush=True)
    return 0


def call(case: Case, device: str) -> None:
    """One call, to its end."""
    problem = case.problem
    q, k, v = _inputs(problem, device)
    if case.loud:
        q *= LOUD
    leaves = [t.requires_grad_(case.variant.backward) for t in (q, k, v)]
    out = fa4.flash_attn_func(
        *leaves,
        window_size=(problem.window_left, problem.window_right),
        deterministic=problem.deterministic,
    )
    if case.variant.backward:
        out.backward(torch.ones_like(out))
    if device == "cuda":
        torch.cuda.synchronize()


def _inputs(problem: Problem, device: str) -> Iterator[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    for length, heads, head_dim in (
        (problem.seqlen_q, problem.heads_q, problem.head_dim),
        (problem.seqlen_k, problem.heads_kv, problem.head_dim),
        (problem.seqlen_k, problem.heads_kv, problem.head_dim_v),
    ):
        shape = (problem.batch, length, heads, head_dim)
        values = torch.randn(shape, generator=generator, device=device)
        yield values.to(getattr(torch, problem.dtype))
