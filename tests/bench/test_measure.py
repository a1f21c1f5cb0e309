"""One cell with fake kernels: checked, timed, and nobody dropped."""

from dataclasses import replace

import pytest
import torch

from bench.hopper import accuracy, cells
from bench.hopper.cells import Cell
from bench.hopper.implementations import Implementation, implementations
from bench.hopper.measure import Bench, DeviceLost
from tests.bench.fakes import HOST_US, FakeDevice, implementation

CELL = Cell(head_dim=8, causal=True, length=64, heads_q=2, heads_kv=1)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(cells, "TOKENS", 128)


def bench(device, *kernels):
    return Bench(device, kernels, gemm=lambda: device.launch("gemm", 2.0))


def test_right_kernels_are_timed():
    device = FakeDevice()
    kernels = [implementation(device, "ours", 0.5), implementation(device, "peer", 1.0)]
    measurement = bench(device, *kernels).measure(CELL)
    ours = measurement.outcomes["ours"]
    assert ours.status == "ok"
    assert ours.ms == pytest.approx(0.5)
    assert ours.tflops == pytest.approx(CELL.flops / 0.5e-3 / 1e12)
    assert (ours.launches, len(ours.samples_ms)) == (20, 8)
    assert ours.host_us == pytest.approx(HOST_US)
    assert ours.eager_ms == pytest.approx(0.5, rel=0.02)
    assert 0 < ours.rel_rms < ours.worst_row < accuracy.ROW_LIMIT
    assert measurement.gemm_tflops == pytest.approx(2 * 8192**3 / 2e-3 / 1e12)
    assert measurement.clock_mhz == 1755
    timed = device.log[device.log.index("gemm") :]
    turns = [name for name in timed if name != "gemm"]
    assert turns[:4] == ["ours", "peer", "peer", "ours"]


def test_all_orders_of_those_that_run_are_timed_equally_often():
    """A missing peer has no place in an order: 8 rounds for 4, 10 for 5."""
    for names, rounds in (("abcd", 8), ("abcde", 10)):
        device = FakeDevice()
        absent = Implementation("absent", None, None, missing="not installed")
        kernels = [absent, *(implementation(device, name, 1.0) for name in ("ours", *names[1:]))]
        outcomes = bench(device, *kernels).measure(CELL).outcomes
        assert {len(outcomes[kernel.name].samples_ms) for kernel in kernels[1:]} == {rounds}


def test_nobody_is_dropped():
    device = FakeDevice()
    absent = Implementation("absent", None, None, missing="not installed")
    kernels = [
        implementation(device, "ours", 1.0),
        absent,
        implementation(device, "raises", 1.0, error=ValueError("no\nkernel")),
        implementation(device, "wrong", 1.0, scale=1.05),
        implementation(device, "idle graph", 1.0, replays_work=False),
    ]
    outcomes = bench(device, *kernels).measure(CELL).outcomes
    assert {name: o.status for name, o in outcomes.items()} == {
        "ours": "ok",
        "absent": "missing",
        "raises": "failed",
        "wrong": "wrong",
        "idle graph": "wrong",
    }
    assert outcomes["absent"].note == "not installed"
    assert outcomes["raises"].note == "ValueError: no kernel"
    assert outcomes["wrong"].note.startswith("a call: relative RMS 5.0e-02")
    assert outcomes["idle graph"].note.startswith("a graph replay: relative RMS nan")
    assert outcomes["wrong"].ms is None


def test_a_lost_gpu_ends_the_run_with_what_was_known():
    device = FakeDevice()
    kernels = [
        implementation(device, "ours", 1.0, error=RuntimeError("illegal address")),
        implementation(device, "peer", 1.0),
    ]
    device.broken = True
    with pytest.raises(DeviceLost, match="illegal address") as caught:
        bench(device, *kernels).measure(CELL)
    statuses = {name: o.status for name, o in caught.value.measurement.outcomes.items()}
    assert statuses == {"ours": "failed", "peer": "left"}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_reference(causal, heads_kv, monkeypatch):
    monkeypatch.setattr(accuracy, "MAX_SCORES", 2 * 32 * 32)  # two heads at a time
    shapes = ((2, 32, 4, 16), (2, 32, heads_kv, 16), (2, 32, heads_kv, 16))
    q, k, v = accuracy.inputs(shapes, torch.float32, "cpu")
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(t.double().transpose(1, 2) for t in (q, k, v)), is_causal=causal, enable_gqa=True
    ).transpose(1, 2)
    assert accuracy.error(accuracy.reference(q, k, v, causal), expected.float()).worst_row < 1e-6


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.25, 16), (1.0, 64)])
def test_jumps_come_last_and_in_the_share_of_blocks(share, expected):
    shape = (2, 256, 8, 16)
    jumps = accuracy.Jumps(share, rows=64)
    q, k, _ = accuracy.inputs((shape, shape, shape), torch.bfloat16, "cpu", jumps)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) / 4
    jump = (scores[..., 0] - scores[..., 1:].amax(-1)) * 1.4427 > 100  # log2
    blocks = jump.unflatten(-1, (4, 64))
    assert not blocks[..., 1:].any()
    assert blocks.any(-1).sum() == expected


def test_one_wrong_row_is_an_error():
    expected = torch.randn(1, 1024, 4, 64)
    out = expected.clone()
    out[0, 1000, 3] *= 1.1
    assert not accuracy.error(out, expected).ok
    out[0, 1000, 3] = expected[0, 1000, 3]
    assert accuracy.error(out, expected).ok
    out[0, 0, 0, 0] = torch.nan
    assert not accuracy.error(out, expected).ok


def test_all_peers_are_listed_even_where_they_cannot_run():
    found = {i.name: i for i in implementations()}
    assert list(found) == ["ours", "cudnn", "flash-attn-4", "fa3", "fa2"]
    assert [i.name for i in implementations(ours_only=True)] == ["ours"]


@pytest.mark.parametrize("heads_kv", [4, 2])
def test_sdpa_is_bound_to_our_layout(heads_kv):
    """FLASH_ATTENTION also exists on a CPU, in another implementation of torch."""
    (fa2,) = (i for i in implementations() if i.name == "fa2")
    shapes = ((2, 32, 4, 16), (2, 32, heads_kv, 16), (2, 32, heads_kv, 16))
    inputs = accuracy.inputs(shapes, torch.float32, "cpu")
    call = replace(fa2, missing="").bind(inputs, True)
    with fa2.context():
        (out,) = fa2.output(call())
    assert accuracy.error(out, accuracy.reference(*inputs, True)).ok
