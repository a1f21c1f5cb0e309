"""`fa4 verify`: choice of kernels, table, JSON, exit code."""

import json

import pytest
import torch

from fa4.cli import main
from fa4.compile import PACKAGE, source_digest
from fa4.verify import ladder
from fa4.verify.ladder import Outcome
from fa4.verify.workers import DIED

ONLY = ["verify", "--arch", "sm_100a", "--jobs", "1", "--match"]
ONE = [*ONLY, "fwd_d64_float16_right_left_softcap"]
EIGHT = [*ONLY, "fwd_d64_bfloat16"]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def rungs(monkeypatch):
    """Replaces what the rungs do: a rung's outcome by its name."""

    def use(**outcomes):
        steps = {
            name: lambda *_, name=name: outcomes.get(name.replace(" ", "_"), Outcome(1))
            for name in ladder.RUNGS
        }
        monkeypatch.setattr(ladder, "RUNGS", steps)

    return use


def line(text, rung):
    return next(line for line in text.splitlines() if f"  {rung}  " in line)


def test_without_a_gpu_it_stops_below_the_last_rung_and_says_so(rungs, capsys):
    rungs(hostile_schedules=Outcome(9))
    assert main(ONE) == 0
    said = capsys.readouterr()
    assert line(said.out, "hostile schedules").split()[-4:] == ["1/1", "9", "0", "none"]
    assert line(said.out, "on Hopper silicon").endswith("no GPU")
    assert "Not climbed: on Hopper silicon, no GPU." in said.out
    assert "No rung is a run on a Blackwell GPU." in said.out
    assert "1/1 sm_100a fa4_fwd_d64_float16_right_left_softcap ok" in said.err


def test_a_failure_is_named_and_ends_in_exit_code_1(rungs, capsys, tmp_path):
    rungs(emulated=Outcome(1, "O is wrong"))
    assert main([*EIGHT, "--json", str(tmp_path / "v")]) == 1
    said = capsys.readouterr()
    assert line(said.out, "emulated").endswith(
        "8/8     8       8  fa4_fwd_d64_bfloat16: O is wrong"
    )
    assert line(said.out, "hostile schedules").split()[-4:-2] == ["0/8", "0"]
    assert "FAILED emulated: O is wrong" in said.err
    saved = json.loads((tmp_path / "v").read_text())
    assert saved["not_climbed"]["on Hopper silicon"] == "no GPU"
    assert source_digest(PACKAGE).startswith(saved["fingerprint"])
    first = saved["kernels"][0]
    assert (first["name"], first["failed"]) == ("fa4_fwd_d64_bfloat16", "emulated")
    assert first["rungs"]["emulated"] == {"runs": 1, "failure": "O is wrong", "lost": False}
    assert "hostile schedules" not in first["rungs"]


def test_a_lost_gpu_leaves_kernels_and_table_and_json_say_which(rungs, capsys, tmp_path):
    rungs(emulated=Outcome(1, "TimeoutError: still runs", lost=True))
    assert main([*EIGHT, "--json", str(tmp_path / "v")]) == 1
    said = capsys.readouterr().out
    assert line(said, "emulated").split()[-7:-4] == ["1/8", "1", "1"]
    (left,) = [line for line in said.splitlines() if line.startswith("Not climbed, as every")]
    assert left.count("fa4_fwd_d64_") == 7
    saved = json.loads((tmp_path / "v").read_text())["kernels"]
    assert [kernel["climbed"] for kernel in saved] == [True] + [False] * 7
    assert saved[0]["rungs"]["emulated"]["lost"]


def test_a_dead_process_is_named(monkeypatch, capsys):
    monkeypatch.setattr(ladder, "climb", lambda *_: {DIED: Outcome(1, "it died", lost=True)})
    assert main(ONE) == 1
    said = capsys.readouterr().out
    assert "Its process died: sm_100a fa4_fwd_d64_float16_right_left_softcap." in said


def test_each_pass_has_its_rows(rungs, capsys, tmp_path):
    rungs(checked=Outcome(1, "a race"))
    assert main([*ONLY, "d64_float16_right_left_softcap", "--json", str(tmp_path / "v")]) == 1
    said = capsys.readouterr()
    rows = [line.split() for line in said.out.splitlines() if "  checked  " in line]
    assert [(row[1], row[-6:-3]) for row in rows] == [
        ("forward", ["1/1", "1", "1"]),
        ("backward", ["2/2", "2", "2"]),
    ]
    assert "2/3 sm_100a fa4_bwd_d64_float16_right_left_softcap FAILED checked: a race" in said.err
    saved = json.loads((tmp_path / "v").read_text())["kernels"]
    told = [(kernel["backward"], kernel["deterministic"]) for kernel in saved]
    assert told == [(False, False), (True, False), (True, True)]


def test_it_can_start_higher(rungs, capsys):
    rungs(compiled=Outcome(1, "spills"))
    assert main([*ONE, "--start", "emulated", "--up-to", "checked"]) == 0
    assert "compiled" not in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main([*ONE, "--start", "checked", "--up-to", "emulated"])
    assert stopped.value.code == 2
    assert "--start 'checked' lies above --up-to 'emulated'" in capsys.readouterr().err


def test_no_rung_is_left(rungs, capsys):
    rungs()
    assert main([*ONE, "--start", "on Hopper silicon"]) == 2
    assert "on Hopper silicon: no GPU" in capsys.readouterr().err


def test_it_can_stop_earlier(rungs, capsys):
    rungs()
    assert main([*ONE, "--up-to", "emulated"]) == 0
    said = capsys.readouterr().out
    assert "hostile" not in said
    assert "Not climbed" not in said


def test_what_nothing_here_runs_is_compiled_only(rungs, capsys):
    rungs()
    b300 = ["verify", "--arch", "sm_103a", *ONE[3:]]
    with pytest.raises(SystemExit) as stopped:
        main(b300)
    assert stopped.value.code == 2
    assert "--arch sm_103a: nothing here runs these kernels; add --up-to compiled" in (
        capsys.readouterr().err
    )
    assert main([*b300, "--up-to", "compiled"]) == 0
    said = capsys.readouterr()
    assert "sm_103a fa4_fwd_d64_float16_right_left_softcap ok" in said.err
    assert "No rung is a run on a Blackwell GPU." in said.out
    assert main(["verify", *ONE[3:]]) == 0
    assert "sm_103a" not in capsys.readouterr().err


def test_a_name_that_no_kernel_has(capsys):
    assert main(["verify", "--match", "d512"]) == 2
    assert "no kernel's name contains 'd512'" in capsys.readouterr().err


def test_numbers_must_be_positive(capsys):
    with pytest.raises(SystemExit):
        main([*ONE, "--schedules", "0"])
    assert "'0' is not a positive integer" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_said_before_any_kernel_climbs(rungs, capsys, tmp_path):
    for file, words in ((tmp_path / "missing" / "v.json", "make it first"), (tmp_path, "a folder")):
        with pytest.raises(SystemExit) as stopped:
            main([*ONE, "--json", str(file)])
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err


def test_fewer_launches_than_modes_are_refused(rungs, capsys):
    rungs()
    with pytest.raises(SystemExit) as stopped:
        main([*ONE, "--launches", "5"])
    assert stopped.value.code == 2
    assert "--launches 5: sm_100a runs in 6 modes" in capsys.readouterr().err
    assert main([*ONE, "--launches", "5", "--up-to", "checked"]) == 0
    assert main(["verify", "--arch", "sm_90a", *ONE[3:], "--launches", "1"]) == 0
