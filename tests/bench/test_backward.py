"""The backward pass in the bench: its reference, its error, its variants."""

import pytest
import torch

import fa4
from bench.hopper import accuracy, cells
from bench.hopper.backward import parse
from bench.hopper.backward_implementations import backward_implementations, tuned
from bench.hopper.cells import Cell
from bench.hopper.measure import Bench, Measurement
from bench.hopper.passes import BACKWARD
from bench.hopper.problems import upstream
from bench.hopper.summary import BACKWARD_GOALS, best_peer, report, summarise
from fa4.plan_backward import plan_backward
from fa4.problem import example_problem
from tests.bench.fakes import FakeDevice, implementation, outcome

CELL = Cell(head_dim=8, causal=True, length=256, heads_q=4, heads_kv=2)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "TOKENS", 512)


@pytest.mark.parametrize("causal", [False, True])
def test_reference_is_what_autograd_computes(causal: bool) -> None:
    q, k, v, out, lse, grad_out = BACKWARD.inputs(CELL, torch.float64, "cpu", None)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    rows, keys, values = (t.transpose(1, 2) for t in leaves)
    attended = torch.nn.functional.scaled_dot_product_attention(
        rows, keys, values, is_causal=causal, enable_gqa=True
    )
    expected = torch.autograd.grad(attended, leaves, grad_out.transpose(1, 2))
    out, lse = accuracy.reference_with_lse(q, k, v, causal)
    found = accuracy.gradients(q, k, v, out, lse, grad_out, causal)
    assert accuracy.gradient_error(found, expected).worst_row < 1e-5


def test_an_error_in_one_block_of_one_gradient_is_found() -> None:
    right = BACKWARD.reference(BACKWARD.inputs(CELL, torch.bfloat16, "cpu", None), True)
    assert accuracy.gradient_error(right, right).ok
    for wrong in range(3):
        results = [t.clone() for t in right]
        results[wrong][1, 128:, 1] *= 1.05
        error = accuracy.gradient_error(results, right)
        assert not error.ok
        assert error.worst_row == pytest.approx(0.05, rel=1e-3)
        results[wrong][0, 0, 0, 0] = torch.nan
        assert not accuracy.gradient_error(results, right).ok


def test_a_backward_is_checked_and_its_operations_counted() -> None:
    device = FakeDevice()
    kernels = [
        implementation(device, "ours", 1.0, measured=BACKWARD),
        implementation(device, "ours {'stages': 1}", 0.5, measured=BACKWARD),
        implementation(device, "peer", 2.0, measured=BACKWARD),
        implementation(device, "wrong", 0.1, scale=1.05, measured=BACKWARD),
    ]
    bench = Bench(device, kernels, lambda: device.launch("gemm", 2.0), measured=BACKWARD)
    measurement = bench.measure(CELL)
    outcomes = measurement.outcomes
    assert [o.status for o in outcomes.values()] == ["ok", "ok", "ok", "wrong"]
    assert outcomes["ours"].tflops == pytest.approx(2.5 * CELL.flops / 1e-3 / 1e12)
    assert best_peer(measurement) == "peer"


def test_goals_are_those_of_the_backward() -> None:
    cell = Measurement(CELL, {"ours": outcome(1.0, 1.0), "peer": outcome(1.0, 0.95)})
    assert summarise([cell]).below_floor == [str(CELL)]
    assert summarise([cell], BACKWARD_GOALS).below_floor == []
    assert "(goal 1.00)" in report([cell], BACKWARD_GOALS)


def test_variants_are_ours_with_another_tuning() -> None:
    names = [i.name for i in backward_implementations(variants=({"stages": 1},))]
    assert names == ["ours", "ours {'stages': 1}", "cudnn", "flash-attn-4"]
    plan = plan_backward(example_problem(128), "sm_90a")
    assert tuned(plan, {"stages": 1}).tuning.stages == 1
    assert tuned(plan, {}) == plan


def test_options_are_those_of_the_forward_and_more() -> None:
    options = parse(["--head-dims", "64", "--tunings", "{'stages': 1}"])
    assert (options.head_dims, options.tunings) == ([64], ["{'stages': 1}"])
    assert options.lengths == cells.LENGTHS


@pytest.mark.parametrize("variant", [{}, {"deterministic": True}, {"rounded_p": False}], ids=str)
def test_ours_and_its_variants_run(variant: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FA4_EMULATE_ARCH", "sm_90a")
    cell = Cell(head_dim=64, causal=True, length=100, heads_q=2, heads_kv=1)
    monkeypatch.setattr(cells, "TOKENS", 100)
    inputs = BACKWARD.inputs(cell, torch.bfloat16, "cpu", None)
    ours = backward_implementations(ours_only=True, variants=(variant,) if variant else ())[-1]
    with fa4.emulator.session(arch="sm_90a"):
        found = ours.output(ours.bind(inputs, True)())
    assert accuracy.gradient_error(found, BACKWARD.reference(inputs, True)).ok


def test_upstream_gradients_belong_to_the_seed() -> None:
    out, lse = torch.zeros(1, 8, 2, 4, dtype=torch.bfloat16), torch.zeros(1, 2, 8)
    first, again, other = (upstream(out, lse, seed) for seed in (3, 3, 4))
    assert first[0].dtype == out.dtype
    assert first[0].equal(again[0])
    assert first[1].equal(again[1])
    assert not first[0].equal(other[0])
    assert first[1].any()
    assert not other[1].any()
