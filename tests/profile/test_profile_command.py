"""The command `fa4 profile`."""

import importlib.util
import json
import sys

import pytest
import torch

from fa4.profile import profile_main, run

SMALL = ["--head-dim", "64", "--seqlen", "128"]


@pytest.fixture
def no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def test_without_the_plot_extra_table_and_trace_are_still_written(no_matplotlib, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert profile_main(["--arch", "sm_90a", *SMALL, "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert "pip install 'fa4-kernels[plot]'" in printed.err
    trace = json.loads((out / "timeline.json").read_text())
    assert "executed warp instructions" in trace["otherData"]["unit"]
    assert "no time model" in trace["otherData"]["note"]
    table = (out / "timeline.txt").read_text()
    assert table.strip() in printed.out
    for part in ("executed warp instructions", "no time model", "attend", "q_loaded"):
        assert part in table
    assert not (out / "timeline.png").exists()


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="extra `plot`")
def test_a_trace_is_drawn_without_running_anything(tmp_path, capsys):
    assert profile_main(["--arch", "sm_90a", *SMALL, "--out", str(tmp_path)]) == 0
    trace = tmp_path / "timeline.json"
    assert (
        profile_main(["--trace", str(trace), "--span", "0", "99", "--out", str(tmp_path / "b")])
        == 0
    )
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["timeline.png"]


def test_a_file_that_is_no_trace_is_refused(tmp_path, capsys):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SystemExit):
        profile_main(["--trace", str(tmp_path / "other.json"), "--out", str(tmp_path)])
    assert "no trace of `fa4 profile`" in capsys.readouterr().err


def test_results_need_a_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stopped:
        profile_main([*SMALL, "--out", str(tmp_path / "file")])
    assert stopped.value.code == 2
    assert f"{tmp_path / 'file'} is a file; name a folder" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--gpu", "--ncu"])
def test_a_missing_gpu_is_said(flag, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        profile_main([flag, "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err


def test_the_runner_says_so_too(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        run.main(["--iket"])
    assert stopped.value.code == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--head-dim", "136"], "supports both at most"),
        (["--heads", "3", "--heads-kv", "2"], "no multiple"),
        (["--gpu", "--records", "100"], "100 is no power of two"),
        (["--ctas", "0"], "'0' is not a positive integer"),
        (["--gpu", "--head-dim", "0"], "argument --head-dim: '0' is not a positive integer"),
        (["--head-dim-v", "-8"], "argument --head-dim-v: '-8' is not a positive integer"),
        (["--records", "4096"], "no effect without --gpu: leave out --records"),
        (["--ncu", "--ctas", "1", "--span", "0", "9"], "with --ncu: leave out --ctas, --span"),
        (
            ["--trace", "t.json", "--arch", "sm_90a", "--seqlen-k", "9", "--records", "64"],
            "with --trace: it runs nothing: leave out --arch, --records, --seqlen-k",
        ),
    ],
)
def test_bad_options_are_refused(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        profile_main([*options, "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
