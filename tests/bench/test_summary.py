"""Ratios, geometric means, tables."""

import pytest

from bench.hopper.cells import Cell
from bench.hopper.measure import Measurement, Outcome
from bench.hopper.summary import best_peer, cell_line, geometric_mean, ratio, report, summarise
from tests.bench.fakes import outcome

FAILED = Outcome("failed", "ValueError: no kernel")


def measured(length, ours, cudnn, fa2, causal=False):
    """Outcomes from ms; an Outcome is taken as it is."""
    times = {"ours": ours, "cudnn": cudnn, "fa2": fa2}
    outcomes = {
        name: ms if isinstance(ms, Outcome) else outcome(100 / ms, ms) for name, ms in times.items()
    }
    return Measurement(Cell(64, causal, length, 32, 32), outcomes, gemm_tflops=700.0)


def test_ratio_is_against_the_fastest_peer():
    assert ratio(measured(512, 1.0, 1.5, 3.0)) == 1.5
    assert ratio(measured(512, 1.0, 1.5, 0.9)) == 0.9
    assert best_peer(measured(512, 1.0, 1.5, 0.9)) == "fa2"


def test_a_peer_without_a_right_result_does_not_count():
    wrong = Outcome("wrong", "", ms=0.1)
    assert ratio(measured(512, 1.0, wrong, 3.0)) == 3.0
    assert ratio(measured(512, FAILED, 1.0, 3.0)) is None
    assert ratio(measured(512, 1.0, wrong, FAILED)) is None


def test_geometric_mean():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    assert geometric_mean([]) is None


def test_summary():
    run = [
        measured(512, 1.0, 1.21, 2.0),
        measured(1024, 1.0, 1.0, 2.0),
        measured(512, 1.0, 0.97, 2.0, causal=True),
        measured(1024, FAILED, 1.0, 1.0, causal=True),
    ]
    summary = summarise(run)
    assert (summary.cells, summary.compared) == (4, 3)
    assert summary.by_group == {
        "d64 full": pytest.approx(1.1),
        "d64 causal": pytest.approx(0.97),
    }
    assert summary.geometric_mean == pytest.approx((1.21 * 1.0 * 0.97) ** (1 / 3))
    assert summary.lowest == 0.97
    assert summary.below_floor == ["d64 causal 512"]


def test_tables_name_every_status_and_reason():
    missing = Outcome("missing", "not installed")
    run = [
        measured(512, 1.0, 1.25, missing),
        measured(1024, FAILED, 2.0, missing),
        measured(1024, 0.5, 1.0, missing, causal=True),
    ]
    text = report(run)
    rates = text.split("\n\n")[0].splitlines()
    assert rates[1].split() == ["cells", "kernel", "512", "1k"]
    assert rates[3].split() == ["d64", "full", "ours", "100", "failed"]
    assert rates[4].split() == ["d64", "full", "cudnn", "80", "50"]
    assert rates[5].split() == ["d64", "full", "fa2", "missing", "missing"]
    assert rates[6].split() == ["d64", "full", "gemm", "700", "700"]
    assert rates[7].split() == ["d64", "causal", "ours", "-", "200"]
    ratios = text.split("\n\n")[1].splitlines()
    assert ratios[3].split() == ["d64", "full", "1.250", "-", "1.250"]
    assert ratios[4].split() == ["d64", "causal", "-", "2.000", "2.000"]
    assert "2 of 3 cells compared: geometric mean 1.581" in text
    assert "ours failed in 1 cells (d64 full 1k): ValueError: no kernel" in text
    assert "fa2 missing in 3 cells (d64 full 512 ...): not installed" in text
    overheads = next(line for line in text.splitlines() if line.split()[:2] == ["ours", "10.0"])
    assert overheads.split() == ["ours", "10.0", "10.0", "2.000"]


def test_a_cell_in_one_line():
    assert cell_line(measured(512, 1.0, 1.25, FAILED)) == (
        "d64 full 512: ours 100, cudnn 80, fa2 failed; 1.250 x cudnn; gemm 700"
    )


def test_nothing_measured_is_a_report_too():
    assert "No cell has both ours and a peer" in report([])
