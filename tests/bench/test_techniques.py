"""`python -m bench techniques` without a GPU: which variants there are, and the table."""

import json
from pathlib import Path

import pytest
import torch

from bench.hopper import techniques
from bench.hopper.cells import Cell
from bench.hopper.techniques import PLANNED, WITHOUT, main, problem_of, report, variants
from fa4.plan import plan_forward


def planned(head_dim: int, causal: bool, length: int) -> dict:
    problem = problem_of(Cell(head_dim, causal, length, 2, 2))
    return variants(plan_forward(problem, "sm_90a"))


def test_every_technique_is_left_out_somewhere() -> None:
    found = planned(128, True, 2048) | planned(64, True, 512)
    assert set(found) == {PLANNED, *WITHOUT}
    assert len(set(found.values())) == len(found)


def test_no_variant_is_the_plan_or_unfit() -> None:
    found = planned(256, False, 8192)
    assert "2 K/V stages" not in found  # it has two
    assert "2 x 64 rows, 128 keys" not in found  # too much shared memory
    for plan in found.values():
        plan.check()


def test_table() -> None:
    text = report({"d64 full 2k": {PLANNED: 2.0, "running maximum": 2.5}})
    assert "1.250" in text
    assert "2.000" in text


def test_a_run_that_is_cut_short_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = iter([{PLANNED: 2.0, "running maximum": 2.5}])

    def measure(device: object, cell: Cell) -> dict[str, float]:
        try:
            return next(measured)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(techniques, "measure", measure)
    monkeypatch.setattr(techniques.files, "environment", dict)
    with pytest.raises(KeyboardInterrupt):
        main(["--head-dims", "64", "--lengths", "512", "--out", str(tmp_path)])
    kept = json.loads((tmp_path / "techniques.json").read_text())["ms"]
    assert kept == {"d64 full 512": {PLANNED: 2.0, "running maximum": 2.5}}
    assert "1.250" in (tmp_path / "techniques.txt").read_text()


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture) -> None:
    assert main([]) == 2
    assert "Hopper" in capsys.readouterr().out
