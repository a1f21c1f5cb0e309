"""The run: budget, what is left, what is saved."""

import json
import re

import pytest
import torch

from bench.__main__ import main
from bench.hopper import cells, files
from bench.hopper.cells import Cell, grid
from bench.hopper.command import Budget, Run, parse
from bench.hopper.measure import DeviceLost, Measurement, Outcome
from bench.results import FOLDER
from fa4.compile import PACKAGE, source_digest
from tests.bench.fakes import outcome

PLANNED = grid(("mha",), (64,), ("full", "causal"), (512, 1024))


class Clock:
    """Seconds that pass only in measured cells."""

    now = 0.0

    def __call__(self):
        return self.now


def measurement(cell: Cell) -> Measurement:
    return Measurement(cell, {"ours": outcome(400.0, 1.0), "cudnn": outcome(300.0, 4 / 3)}, 700.0)


def run(seconds=None, measure=measurement, per_cell=10.0):
    """A finished run and how often it was saved."""
    clock, saves = Clock(), []

    def timed(cell):
        clock.now += per_cell
        return measure(cell)

    done = Run(PLANNED, Budget(seconds, clock))
    done.measure(timed, lambda: saves.append(len(done.measurements)))
    return done, saves


def test_all_cells_are_measured_and_saved_one_by_one(capsys):
    done, saves = run()
    assert [m.cell for m in done.measurements] == PLANNED
    assert saves == [1, 2, 3, 4]
    assert done.good
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("[2/4, 20 s, 20 s to go] d64 full 1k: ours 400, cudnn 300; 1.333 x")


@pytest.mark.parametrize(("seconds", "measured"), [(0.0, 0), (1.0, 1), (20.0, 2), (20.5, 3)])
def test_a_spent_budget_starts_no_new_cell_and_says_what_is_left(seconds, measured):
    done, _ = run(seconds)
    assert len(done.measurements) == measured
    assert done.left == [str(cell) for cell in PLANNED[measured:]]
    assert not done.good
    assert f"Not measured, the budget of {seconds:.0f} s is spent: " in done.text()
    assert done.text().endswith("d64 causal 1k")
    assert done.content({})["left"] == done.left


def test_a_lost_gpu_stops_the_run():
    def lose(cell):
        if cell == PLANNED[1]:
            raise DeviceLost("fault", Measurement(cell, {"ours": Outcome(), "cudnn": Outcome()}))
        return measurement(cell)

    done, saves = run(measure=lose)
    assert saves == [1, 2]
    assert done.stopped == "the GPU was lost in d64 full 1k: fault"
    assert done.left == ["d64 causal 512", "d64 causal 1k"]
    assert "ours left in 1 cells (d64 full 1k): not reached" in done.text()


def test_a_failure_of_ours_is_no_good_run():
    def fail(cell):
        return Measurement(cell, {"ours": Outcome("failed", "fault"), "cudnn": outcome(300.0)})

    done, _ = run(measure=fail)
    assert not done.left
    assert not done.good


def test_json(tmp_path):
    done, _ = run(25.0)
    path = files.save_json(tmp_path / "new", done.content({**files.environment(), "command": "c"}))
    data = json.loads(path.read_text())
    assert data["schema"] == files.SCHEMA
    assert {"date", "gpu", "versions", "card", "command", "stopped"} <= set(data)
    assert source_digest(PACKAGE).startswith(data["fingerprint"])
    assert len(data["fingerprint"]) == 12
    assert {"torch", "cudnn", "cuda", "flash-attn-4", "fa4"} <= set(data["versions"])
    assert data["left"] == ["d64 causal 1k"]
    assert data["summary"]["geometric_mean"] == pytest.approx(4 / 3)
    first = data["cells"][0]
    assert first["name"] == "d64 full 512"
    assert first["ratio"] == pytest.approx(4 / 3)
    assert first["flops"] == PLANNED[0].flops
    assert first["implementations"]["ours"]["tflops"] == 400.0
    expected = {"status", "note", "ms", "samples_ms", "eager_ms", "host_us", "rel_rms", "worst_row"}
    assert expected <= set(first["implementations"]["ours"])


def test_a_library_that_was_loaded_is_named_with_its_digest(tmp_path, monkeypatch):
    library = tmp_path / "_vllm_fa3_C.abi3.so"
    library.write_bytes(b"abc")
    monkeypatch.setattr(torch.ops, "loaded_libraries", {str(library)})
    expected = {library.name: {"bytes": 3, "sha256": "ba7816bf8f01"}}  # FIPS 180-4's example
    assert files.environment()["libraries"] == expected


def test_the_readme_names_the_results_that_do_not_name_their_kernels():
    readme = (FOLDER.parents[1] / "README.md").read_text()
    (names,) = re.findall(r"\(`fingerprint`\), but\s+(.*?), which are older", readme, re.DOTALL)
    listed = set(re.findall(r"`(\w+)`", names))
    saved = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    assert listed == {name for name, content in saved.items() if "fingerprint" not in content}


def test_the_card_is_read_by_name(monkeypatch):
    class Done:
        stdout = "580.1, 1755, 3201, 1980, 412.5, 700.0, 51\n"

    monkeypatch.setattr(files.subprocess, "run", lambda *_, **__: Done)
    state = files.card_state()
    assert (state["driver_version"], state["clocks.sm"]) == ("580.1", "1755")
    assert state["temperature.gpu"] == "51"


def test_options():
    assert tuple(parse([]).lengths) == cells.LENGTHS
    assert parse(["--quick"]).lengths == cells.QUICK_LENGTHS
    assert parse(["--lengths", "512", "2048", "--seconds", "60"]).lengths == [512, 2048]
    with pytest.raises(SystemExit):
        parse(["--quick", "--lengths", "512"])


def test_a_plot_needs_matplotlib_only(tmp_path):
    pytest.importorskip("matplotlib")
    done, _ = run()
    assert files.save_plot(tmp_path, done.measurements).read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
def test_without_a_gpu_the_command_says_so(capsys):
    assert main(["hopper", "--quick"]) == 2
    assert "No CUDA device" in capsys.readouterr().out
