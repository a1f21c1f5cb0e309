"""The static comparison: tables, saved results, other kernels' counts."""

import json

import pytest

from bench import exp2_share, peers, results, static
from bench.__main__ import main
from bench.anchors import ANCHORS
from bench.cases import CASES, Case
from bench.progress import progress
from fa4.profile.disassembler import find_nvdisasm
from fa4.profile.static import analyse
from fa4.profile.summary import summarise

needs_nvdisasm = pytest.mark.skipif(
    find_nvdisasm() is None, reason="nvdisasm is not installed (extra `sass`)"
)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


@needs_nvdisasm
def test_static_prints_and_saves_ours_and_the_known_counts(monkeypatch, folder, capsys):
    monkeypatch.setattr(static, "CASES", (Case(64, 64, causal=True),))
    assert main(["--no-peers"]) == 0
    text = capsys.readouterr().out
    for part in ("fa4 d64 causal, masked", "Modelled, not measured", "cuDNN d128", "442"):
        assert part in text
    saved = json.loads((folder / "static.json").read_text())
    assert saved["versions"]["ptxas"]
    assert saved["versions"]["nvidia-cutlass-dsl"]
    (row,) = saved["rows"]
    assert row["kernel"] == "fa4 d64 causal"
    assert row["step"]["mma"] == 1024


@needs_nvdisasm
def test_exp2_share_compiles_each_share(folder, capsys):
    shares = (0, 16)
    assert main(["exp2-share", "--head-dims", "64", "--shares", *map(str, shares)]) == 0
    assert "emulated of 128" in capsys.readouterr().out
    rows = json.loads((folder / "exp2_share.json").read_text())["rows"]
    assert [row["emulated"] for row in rows] == list(shares)
    assert [row["unmasked"]["emulated"] for row in rows] == list(shares)
    assert rows[0]["unmasked"]["ex2"] - rows[1]["unmasked"]["ex2"] == 16
    assert rows[0]["unmasked"]["instructions"] < rows[1]["unmasked"]["instructions"]
    assert rows[0]["step"]["mufu"] - rows[1]["step"]["mufu"] == 2 * 8 * 16


@pytest.mark.parametrize("share", [-8, 20, 136])
def test_impossible_shares_are_refused(share):
    with pytest.raises(ValueError, match=f"exp2_emulated={share}"):
        exp2_share.with_share(CASES[0].plan(), share)


@needs_nvdisasm
@pytest.mark.peers
@pytest.mark.skipif(bool(peers.missing()), reason="the extra `peers` is not installed")
def test_the_known_counts_of_flash_attention_are_what_is_counted_here():
    anchor = next(anchor for anchor in ANCHORS if anchor.kernel == "flash-attn-4 d128 causal")
    case = Case(128, 128, causal=True)
    found = summarise(analyse(peers.compile_peer(case)), case.plan())
    assert found.unmasked.instructions == anchor.unmasked
    assert found.masked.instructions == anchor.masked
    assert (found.unmasked.ex2, found.unmasked.emulated) == (anchor.ex2, anchor.emulated)
    assert found.mma_per_32 == anchor.mma
    assert found.correction == anchor.correction


def test_progress_names_every_item(capsys):
    assert list(progress(["a", "b"], "compiling")) == ["a", "b"]
    assert [line[:15] for line in capsys.readouterr().err.splitlines()] == [
        "compiling 1/2: ",
        "compiling 2/2: ",
    ]
