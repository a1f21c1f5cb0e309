"""The GPT of the examples learns with our kernels as with torch's."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples import train_gpt as example

TOLERANCE = 5e-4  # of a loss


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_losses_are_those_of_sdpa(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FA4_EMULATE_ARCH", arch)
    runs = {
        name: example.train(example.ATTENTIONS[name], example.TINY, 3, torch.device("cpu"))
        for name in ("fa4", "sdpa")
    }
    losses, expected = runs["fa4"][0], runs["sdpa"][0]
    assert losses == pytest.approx(expected, abs=TOLERANCE)
    assert losses[2] < losses[0] - 0.05  # it learns
    assert losses != expected  # other kernels, other roundings
    assert runs["fa4"][1] > 0


def uncausal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)


def without_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return example.sdpa(q, k, v).detach()


@pytest.mark.parametrize("wrong", [uncausal, without_gradient])
def test_a_wrong_attention_would_be_noticed(wrong: example.Attention) -> None:
    device = torch.device("cpu")
    got, _ = example.train(wrong, example.TINY, 3, device)
    expected, _ = example.train(example.sdpa, example.TINY, 3, device)
    assert got != pytest.approx(expected, abs=10 * TOLERANCE)


def test_batches_are_text_and_its_next_bytes() -> None:
    device = torch.device("cpu")
    tokens, targets = next(example.batches(example.TINY, device))
    assert tokens[:, 1:].equal(targets[:, :-1])
    assert bytes(tokens[0].tolist()) in bytes(example.corpus().tolist())
    assert tokens.equal(next(example.batches(example.TINY, device))[0])


def test_saved_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    example.save(tmp_path / "runs", "fa4", [3.0, 2.0], 10.0)
    saved = json.loads((tmp_path / "runs" / "fa4.json").read_text())
    assert saved == {"losses": [3.0, 2.0], "tokens_per_second": 10.0}
    assert (tmp_path / "runs" / "loss.png").stat().st_size > 0


@pytest.mark.parametrize("why", ["a file is in the way", "may not be written"])
def test_a_folder_without_a_place_for_results_is_refused_before_the_training(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    there = tmp_path
    if why == "a file is in the way":
        there = tmp_path / "results"
        there.touch()
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (there, os.W_OK))
    monkeypatch.setattr(example, "train", lambda *_: pytest.fail("trains"))
    monkeypatch.setattr(sys, "argv", ["train_gpt.py", "--out", str(there / "new" / "run")])
    with pytest.raises(SystemExit) as stopped:
        example.main()
    assert stopped.value.code == 2
    assert f"argument --out: {there} is no folder to write in" in capsys.readouterr().err
