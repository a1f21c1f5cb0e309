"""`python -m bench overhead`: what it times, and the way it takes without a GPU."""

import json
import struct
import time

import pytest
import torch

import fa4
from bench import overhead
from bench.__main__ import main
from bench.hopper.implementations import Implementation, implementations
from fa4.arguments import INTEGERS

TABLES = (
    *("missing", "loop_us", "training_us", "stages_us"),
    *("each_us", "each_us_alone", "each_us_never_waiting"),
)
EMPTY = {table: {} for table in TABLES}


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures the GPU")
def test_without_a_gpu_ours_is_timed_and_said_to_lack_the_driver(tmp_path, capsys):
    path = tmp_path / "overhead.json"
    assert main(["overhead", "--rounds", "1", "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert "No GPU: without the CUDA driver" in text
    content = json.loads(path.read_text())
    assert not content["gpu_measured"]
    assert list(content["loop_us"]) == list(content["each_us"]) == ["ours"]
    for name, us in content["stages_us"].items():
        assert 0 < us < 1000, name
        assert name in text


def test_without_a_driver_a_call_goes_up_to_the_host_function(monkeypatch):
    """With real addresses, and the emulator is left alone."""
    blocks = []

    def entry(block, stream):
        blocks.append(
            dict(zip(INTEGERS, struct.unpack_from(f"{len(INTEGERS)}q", block), strict=True))
        )
        return 0

    monkeypatch.setattr(overhead, "host_function_alone", lambda plan: entry)
    q, k, v = (torch.zeros(1, n, 2, 64, dtype=torch.bfloat16) for n in (5, 6, 6))
    with overhead.launches_without_driver():
        out = fa4.flash_attn_func(q, k, v)
        fa4.flash_attn_func(q, k, v)
    assert [block["q"] for block in blocks] == [q.data_ptr()] * 2
    assert (blocks[1]["v"], blocks[0]["o"]) == (v.data_ptr(), out.data_ptr())
    assert torch.equal(fa4.flash_attn_func(q, k, v), torch.zeros_like(q))  # emulated
    assert len(blocks) == 2


def test_implementations_take_turns_behind_a_synchronize():
    events = []

    def run(name):
        def calls(times, between):
            between()
            for _ in range(times):
                events.append(name)
                between()

        return calls

    runs = {"a": run("a"), "b": run("b")}
    result = overhead.one_by_one(runs, 2, lambda: events.append("wait"))
    n = max(overhead.AFTER_SYNCHRONIZE)
    assert events == [*(["wait", *["a"] * n, "wait", *["b"] * n] * 2), "wait"]
    assert [list(row) for row in result.values()] == [
        [str(i) for i in overhead.AFTER_SYNCHRONIZE]
    ] * 2
    events.clear()
    assert list(overhead.loops(runs, 1, lambda: events.append("wait"))) == ["a", "b"]
    n = overhead.LOOP
    assert events == ["wait", *["a"] * n, "wait", *["b"] * n, "wait"]


def test_the_host_is_warm_before_loops_and_they_come_behind_single_calls(monkeypatch):
    events = []

    def noted(name, result):
        monkeypatch.setattr(overhead, name, lambda *_: events.append(name) or result)

    noted("warm_up", None)
    noted("one_by_one", {})
    noted("loops", {"ours": 1.0})
    monkeypatch.setattr(overhead, "stages", lambda *_: {})
    content = overhead.measure("cpu", implementations(ours_only=True), 1)
    assert events == ["warm_up", *["one_by_one"] * 3, *["loops"] * 3]
    assert set(content) == {*TABLES, "gpu_measured"}


def test_warm_is_what_was_called_for_a_while(monkeypatch):
    monkeypatch.setattr(overhead, "WARM_SECONDS", 0.05)
    times, begin = [], time.perf_counter()
    overhead.warm_up({"a": lambda n, _: times.append(n), "b": lambda *_: None}, lambda: None)
    assert time.perf_counter() - begin >= 0.05
    assert len(times) >= 2
    monkeypatch.setattr(overhead, "WARM_SECONDS", 0.0)
    overhead.warm_up({"a": lambda *_: times.append("once")}, lambda: None)
    assert times.count("once") == 1


def test_training_calls_the_backward_of_every_implementation(monkeypatch):
    backwards, inputs = [], [torch.randn(1, 4, 2, 8) for _ in "qkv"]

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            return q + k + v

        @staticmethod
        def backward(ctx, grad_out):
            backwards.append(grad_out)
            return grad_out, grad_out, grad_out

    peer = Implementation("peer", lambda given, _: lambda: Attention.apply(*given), lambda o: (o,))
    broken = Implementation("odd", lambda given, _: lambda: given[0].detach(), lambda o: (o,))
    runs = {i.name: overhead._training(i, inputs) for i in (peer, broken)}
    good, failed = overhead._runnable(runs)
    assert (list(good), list(failed)) == (["peer"], ["odd, training"])
    assert len(backwards) == 3
    good["peer"](2, lambda: None)
    assert len(backwards) == 5
    with pytest.raises(RuntimeError):
        overhead._runnable({"ours": runs["odd"]})


def test_training_is_reported_beside_the_peers():
    content = {**EMPTY, "gpu_measured": True, "training_us": {"ours": 60.5, "cudnn": 90.0}}
    text = overhead.report(content)
    assert "with their backwards" in text
    assert "60.50" in text
    assert "with their backwards" not in overhead.report({**EMPTY, "gpu_measured": True})


@pytest.mark.parametrize(("us", "code"), [(14.9, 0), (15.1, 1)])
def test_more_than_the_limit_is_a_failure_on_a_gpu(monkeypatch, us, code):
    content = {**EMPTY, "gpu_measured": True, "loop_us": {"ours": us}}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(overhead, "measure", lambda *_: content)
    assert main(["overhead"]) == code
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(overhead, "measure", lambda *_: {**content, "gpu_measured": False})
    assert main(["overhead"]) == 0
