"""CUDA graphs, streams, threads and devices: launches that overlap do not disturb each other.

Needs a GPU that the kernels run on natively, and is skipped elsewhere.
"""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fa4
from fa4 import api
from fa4.gradients import attention_backward

ROOT = Path(fa4.__file__).parent.parent


def native_gpus() -> int:
    """GPUs that kernels run on."""
    supported = [
        api.NATIVE_ARCHS.get(torch.cuda.get_device_capability(i))
        for i in range(torch.cuda.device_count())
    ]
    return sum(arch is not None for arch in supported)


pytestmark = pytest.mark.skipif(native_gpus() == 0, reason="needs a Hopper or Blackwell GPU")


def inputs(seed: int, device: str = "cuda") -> list[torch.Tensor]:
    """Some 800 tiles of different lengths: CTAs fetch several each."""
    torch.manual_seed(seed)
    return [torch.randn(4, 1536, 16, 128, device=device).bfloat16() for _ in "qkv"]


def attention(tensors: list[torch.Tensor]) -> torch.Tensor:
    return fa4.flash_attn_func(*tensors, causal=True)


def captured(tensors: list[torch.Tensor], calls: int = 3) -> tuple[Callable[[], None], list]:
    """The replay of a graph of calls, and what they return."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [attention(tensors) for _ in range(calls)]
    return graph.replay, outs


def test_a_replay_attends_to_what_the_inputs_hold_then() -> None:
    tensors = inputs(0)
    attention(tensors)
    replay, outs = captured(tensors)
    for seed in (1, 2):
        for tensor, other in zip(tensors, inputs(seed), strict=True):
            tensor.copy_(other)
        expected = attention(tensors)
        for out in outs:
            out.fill_(torch.nan)
        replay()
        assert all(torch.equal(out, expected) for out in outs)


def test_graphs_and_calls_run_side_by_side() -> None:
    cases = [inputs(seed) for seed in range(4)]
    expected = [attention(case) for case in cases]
    graphs = [captured(case) for case in cases[:3]]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(30):
        for (replay, outs), stream in zip(graphs, streams, strict=False):
            with torch.cuda.stream(stream):
                for out in outs:
                    out.fill_(torch.nan)
                replay()
        with torch.cuda.stream(streams[3]):
            eager = [attention(cases[3]) for _ in range(3)]
        torch.cuda.synchronize()
        found = [*(outs for _, outs in graphs), eager]
        for outs, right in zip(found, expected, strict=True):
            assert all(torch.equal(out, right) for out in outs)


def test_a_capture_may_be_the_first_thing_that_uses_a_counter() -> None:
    """In a process of its own; the kernel is loaded before, by what it takes to prepare a call."""
    script = """
import torch, fa4
from fa4 import api
torch.manual_seed(0)
q, k, v = (torch.randn(2, 700, 8, 128, device="cuda").bfloat16() for _ in "qkv")
options = (None, True, None, None, 0.0, False)
api._prepare(tuple(map(api.layout_of, (q, k, v))), None, False, *options)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    outs = [fa4.flash_attn_func(q, k, v, causal=True) for _ in range(3)]
for _ in range(3):
    eager = fa4.flash_attn_func(q, k, v, causal=True)
    graph.replay()
    assert all(torch.equal(out, eager) for out in outs)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_threads_on_streams_of_their_own() -> None:
    cases = [inputs(seed) for seed in range(4)]
    expected = [attention(case) for case in cases]
    torch.cuda.synchronize()
    wrong = []

    def calls(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            outs = [attention(cases[number]) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
            wrong.extend(number for out in outs if not torch.equal(out, expected[number]))

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(native_gpus() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_the_current_one() -> None:
    options, found = (None, True, None, None, 0.0, True), []
    for device in ("cuda:0", "cuda:1"):
        q, k, v = inputs(0, device)
        with torch.cuda.device(0):
            out, lse = api.attention(q, k, v, options)
            grads = attention_backward(out, None, q, k, v, out, lse, *options)
            assert torch.cuda.current_device() == 0
        found.append([tensor.cpu() for tensor in (out, lse, *grads)])
    assert all(torch.equal(here, there) for here, there in zip(*found, strict=True))
