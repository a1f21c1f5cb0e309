"""`python -m bench sanitize` without a GPU: its cases, what it reads, and what it says."""

import inspect
import json

import pytest
import torch

from bench.__main__ import main
from bench.hopper import sanitize
from bench.hopper.sanitize import cases, report, run
from bench.hopper.sanitizer_log import load_floats, parse_log
from fa4 import emulator
from fa4.plan import plan_forward
from fa4.variants import HEAD_DIMS
from fa4.warps.hopper.backward import pointwise

CLEAN = {
    "memcheck": "========= ERROR SUMMARY: 0 errors",
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
}
LOAD = inspect.getsourcelines(load_floats)[1] + 4
READ = inspect.getsourcelines(pointwise._pair)[1] + 3
KNOWN = f"""========= Error: Race reported between Read access at bwd+0x1a0 in pointwise.py:{READ}
=========     and Write access at fa4_bwd_d64_1+0x5c0 in /a/fa4/tiles/bulk.py:{LOAD} [384 hazards]
========="""
OTHER = """========= Error: Race reported between Write access at bwd+0x1a0 in compute.py:351
=========     and Read access at fa4_bwd_d64_1+0x5c0 in compute.py:360 [12 hazards]
========="""
INVALID = """========= Invalid __global__ read of size 4 bytes
=========     at fa4_fwd_d64_0+0x30 in load.py:12
=========     by thread (0,0,0) in block (0,0,0)
========="""


def test_a_clean_log_has_no_findings():
    for summary in CLEAN.values():
        log = parse_log(f"========= COMPUTE-SANITIZER\nthe program says\n{summary}\n")
        assert (log.total, log.errors, log.findings) == (0, 0, ())


def test_the_known_race_is_counted_apart():
    summary = "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"
    log = parse_log("\n".join(("========= COMPUTE-SANITIZER", KNOWN, "program", OTHER, summary)))
    assert (log.total, log.errors, len(log.findings)) == (2, 1, 2)
    assert [finding.hazards for finding in log.known] == [384]
    assert "compute.py:360" in next(f.text for f in log.findings if not f.known)


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        (f"pointwise.py:{READ}", f"pointwise.py:{READ + 30}"),
        (f"bulk.py:{LOAD}", "bulk.py:27"),
        (f"bulk.py:{LOAD}", "load.py:9"),
        (f" in pointwise.py:{READ}", ""),
        ("Read access", "Write access"),
        ("and Write", "and Read"),
        ("Race reported", "Odd thing"),
    ],
)
def test_no_other_race_is_known(there, instead):
    assert parse_log(KNOWN).findings[0].known
    assert not parse_log(KNOWN.replace(there, instead)).findings[0].known


def test_an_invalid_access_is_an_error():
    log = parse_log(f"{INVALID}\n========= ERROR SUMMARY: 3 errors")
    assert (log.total, log.errors) == (3, 3)
    assert log.findings[0].text.splitlines()[1] == "at fa4_fwd_d64_0+0x30 in load.py:12"


def test_cases_are_of_all_head_dims_masks_and_lengths():
    for backward in (False, True):
        found = cases(backward)
        assert {case.variant.dims for case in found} == set(HEAD_DIMS["sm_90a"])
        assert {case.variant.mask for case in found} == {"full", "causal", "window"}
        assert len({str(case) for case in found}) == len(found) < 50
    forward, backward = cases(False), cases(True)
    assert sum(case.loud for case in forward) == len(forward) / 2
    assert {case.variant.deterministic for case in backward} == {False, True}
    assert len({c.variant.keys for c in forward}) > 2
    for case in forward:
        assert plan_forward(case.problem, "sm_90a") == case.variant.plan
        assert case.problem.seqlen_q * case.problem.seqlen_k < 1 << 21
    assert all(len(case.plans) == 2 for case in backward)


@pytest.mark.parametrize("backward", [False, True])
def test_a_case_launches_its_kernel(monkeypatch, capsys, backward):
    case = next(case for case in cases(backward) if case.variant.mask == "causal")
    monkeypatch.setenv("FA4_EMULATE_ARCH", "sm_90a")
    with emulator.session(arch="sm_90a") as here:
        assert sanitize.launch([case], "cpu") == 0
    assert any(case.variant.plan.name in launch.name for launch in here.launches)
    assert capsys.readouterr().out == f"{case}\n"


@pytest.fixture
def sanitizer(monkeypatch, tmp_path):
    """One that prints a text and runs nothing; returns how to set that text."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sanitize, "compile_plans", lambda plans: [])
    monkeypatch.setattr(sanitize, "environment", lambda: {"gpu": "GPU"})
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    script = tmp_path / "bin" / "compute-sanitizer"
    script.parent.mkdir()

    def prints(text, then=""):
        (tmp_path / "text").write_text(text)
        script.write_text(f"#!/bin/sh\ncat {tmp_path}/text\n{then}\n")
        script.chmod(0o755)

    return prints


COUNT = 42  # of the forward: 21 kernels, each with quiet and with loud inputs


def ran():
    return "\n".join(map(str, cases(False)))


def test_the_command_runs_all_tools_and_saves(sanitizer, tmp_path, capsys):
    path = tmp_path / "found.json"
    sanitizer(f"{ran()}\n{KNOWN}\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error)")
    assert main(["sanitize", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"racecheck, forward: {COUNT} of {COUNT} cases ran, 0 errors" in printed
    assert "1 reports of 384 hazards that are none: the load of the next LSE" in printed
    saved = json.loads(path.read_text())
    assert [row["tool"] for row in saved["runs"]] == ["memcheck", "racecheck"]
    assert saved["runs"][1]["known"] == {"reports": 1, "hazards": 384}
    assert saved["gpu"] == "GPU"


def test_errors_fail(sanitizer, capsys):
    sanitizer(f"{ran()}\n{INVALID}\n========= ERROR SUMMARY: 1 error")
    assert main(["sanitize", "--tools", "memcheck"]) == 1
    printed = capsys.readouterr().out
    assert f"{COUNT} of {COUNT} cases ran, 1 errors\n  Invalid __global__ read" in printed


@pytest.mark.parametrize(
    ("text", "then", "why"),
    [
        ("Segmentation fault", "exit 1", "it ended early:\nSegmentation fault"),
        (f"some\n{CLEAN['memcheck']}", "", "it ended early"),
        ("hangs", "sleep 600", "it was ended after 1 s (--seconds):\nhangs"),
    ],
)
def test_a_run_that_does_not_come_to_its_end_fails(sanitizer, text, then, why):
    sanitizer(text, then)
    row = run(sanitize.find_sanitizer(), "memcheck", "forward", 1.0)
    assert not row["clean"]
    assert why in report(row)


def test_what_is_missing_is_said(monkeypatch, capsys):
    monkeypatch.setattr(sanitize.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["sanitize"]) == 2
    assert "No CUDA device here" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main(["sanitize"]) == 2
    assert "compute-sanitizer not found: it comes with the CUDA toolkit" in capsys.readouterr().out
