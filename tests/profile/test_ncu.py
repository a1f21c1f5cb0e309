"""Nsight Compute's report by role, and what is said when it cannot be made.

`ncu/` has cuttings of what ncu 2025.3 printed on an H200 for this package's kernel.
"""

import argparse
import csv
import io
import os
from pathlib import Path

import pytest
import torch

from fa4.problem import example_problem
from fa4.profile import ncu, options
from fa4.profile.ncu import NcuError, profile_with_ncu, sampling_command
from fa4.profile.ncu_report import (
    ReportMismatchError,
    _unlisted_reason,
    by_role,
    parse_raw,
    parse_source,
    report_text,
)
from fa4.profile.sass import parse_sass
from fa4.profile.workload import workload
from tests.profile.snippets import SASS

GOLDEN = Path(__file__).parent / "ncu"
BASE = 0x7F3C277A2800
STALLS = ("stall_wait", "stall_math", "stall_long_sb")
COLUMNS = ("Address", "Source", "# Samples", "Instructions Executed", *STALLS)
RAW = (GOLDEN / "raw.csv").read_text()


def test_a_source_page_is_read():
    kernel, found = parse_source((GOLDEN / "source.csv").read_text())
    assert kernel == "fa4_fwd_d128_bfloat16_right_0"
    assert len(found) == 10
    first, branch = found[0], found[7]
    assert (first.address, first.opcode, first.samples, first.executed) == (BASE, "LDC", 18, 2112)
    assert {reason: n for reason, n in first.stalls.items() if n} == {"no_inst": 18}
    assert branch.opcode == "BRA"  # behind its predicate
    assert branch.stalls["short_sb"] == 3


def test_a_raw_page_is_read():
    metrics = parse_raw(RAW)[0]
    assert metrics["gpu__time_duration.sum"] == 495.552
    assert metrics["smsp__inst_executed.sum"] == 145962132
    assert "Kernel Name" not in metrics


def page(function, samples):
    """A source page of `function`; samples: address -> (all, wait, math)."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(["Kernel Name", function.name])
    writer.writerow(COLUMNS)
    for ins in function.instructions:
        counts = samples.get(ins.address, (0, 0, 0))
        guard = f"@{ins.predicate} " if ins.predicate else ""
        source = f"{guard}{ins.opcode} {ins.operands}"
        writer.writerow([hex(BASE + ins.address), source, counts[0], 10, *counts[1:], 0])
    return text.getvalue()


@pytest.fixture
def function():
    return parse_sass(SASS)[0]


def test_samples_go_to_the_role_that_the_control_flow_says(function):
    # 0x0 is set-up; 0x50 a helper's line and 0x130 an mbarrier retry, both inside of softmax
    found = by_role(
        function, page(function, {0x0: (5, 2, 3), 0x50: (8, 8, 0), 0x130: (4, 0, 1)}), RAW
    )
    roles = {role.role: role for role in found.roles}
    assert (roles["softmax"].samples, roles["kernel"].samples) == (12, 5)
    assert roles["kernel"].stalls == {"math": 3, "wait": 2}
    assert roles["softmax"].stalls == {"wait": 8, "other": 3, "math": 1}
    assert sum(role.executed for role in found.roles) == 10 * len(function.instructions)
    for pipe in ("issue", "mufu"):
        assert sum(role.pipes[pipe] for role in found.roles) == pytest.approx(1.0)
    assert found.pipes["tensor"] == pytest.approx(90.264516)
    text = report_text(found)
    assert "495.6 us" in text
    assert "wait 67  other 25  math 8" in text


def test_the_reason_without_a_column_is_named_by_the_raw_page():
    # every other reason of the raw page has a column, abbreviated
    _, sampled = parse_source((GOLDEN / "source.csv").read_text())
    assert _unlisted_reason(sampled, parse_raw(RAW)[0]) == "warpgroup_arrive"
    assert _unlisted_reason(sampled, {}) == "other"


def test_another_kernels_report_is_refused(function):
    other = page(function, {}).replace("MUFU.EX2", "MUFU.RCP")
    with pytest.raises(ReportMismatchError, match=r"MUFU.RCP instead of MUFU.EX2 at offset 0x"):
        by_role(function, other, RAW)
    with pytest.raises(ReportMismatchError, match="instead of"):
        by_role(function, (GOLDEN / "source.csv").read_text(), RAW)
    with pytest.raises(ReportMismatchError, match="no sampled instructions"):
        parse_source("==WARNING== nothing")
    with pytest.raises(ReportMismatchError, match="no metrics"):
        parse_raw("")


@pytest.fixture
def small():
    problem = example_problem(64, causal=True, seqlen_q=128, seqlen_k=256, scale=0.125)
    return workload(problem, "sm_90a", torch.device("cpu"))


def fake_ncu(folder, monkeypatch, script):
    """An `ncu` on PATH, and nowhere else, that runs a shell script."""
    path = folder / "ncu"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(ncu, "_candidates", lambda: iter([path]))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('echo "==ERROR== ERR_NVGPUCTRPERM - no permission"; exit 1', "Run as root"),
        ('echo "==WARNING== No kernels were profiled."', "No kernels were profiled"),
        ("echo broken >&2; exit 3", r"exit code 3(.|\n)*broken"),
        ("exit 0", "wrote no report"),
    ],
)
def test_what_ncu_refuses_is_explained(script, message, small, tmp_path, monkeypatch):
    fake_ncu(tmp_path, monkeypatch, script)
    with pytest.raises(NcuError, match=message):
        profile_with_ncu(small, tmp_path)


def test_a_missing_ncu_is_said(small, tmp_path, monkeypatch):
    monkeypatch.setattr(ncu, "_candidates", lambda: iter([]))
    with pytest.raises(NcuError, match="ncu not found: install Nsight Compute"):
        profile_with_ncu(small, tmp_path)


def test_the_pages_are_kept_when_roles_cannot_be_told(small, tmp_path, monkeypatch):
    pages = "".join(f'*"page {name}"*) cat {GOLDEN}/{name}.csv;; ' for name in ("source", "raw"))
    sampling = f"*) touch {tmp_path}/kernel.ncu-rep;;"
    fake_ncu(tmp_path, monkeypatch, f'case "$*" in {pages} {sampling} esac')
    with pytest.raises(NcuError, match="the report is written, but"):
        profile_with_ncu(small, tmp_path)
    assert (tmp_path / "raw.csv").read_text() == RAW


def test_the_runner_gets_the_same_problem(small):
    command = sampling_command("ncu", small, Path("kernel.ncu-rep"))
    assert f"regex:^{small.plan.name}" in command
    rest = command[command.index("fa4.profile.run") + 1 :]
    parser = argparse.ArgumentParser()
    options.add_kernel_options(parser)
    options.add_size_options(parser)
    for problem in (small.problem, example_problem(64, window_left=7, softcap=1.0, scale=0.125)):
        arguments = parser.parse_args(options.command_options(problem))
        assert options.problem_of(arguments, **options.sizes_of(arguments, True)) == problem
    assert rest == options.command_options(small.problem)
    assert os.path.basename(command[command.index("-m") - 1]).startswith("python")
