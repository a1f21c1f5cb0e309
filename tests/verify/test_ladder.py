"""Each rung sees what it is for, and a kernel that fails one climbs no further."""

import contextlib
from dataclasses import replace

import pytest
import torch

import fa4.on_hopper
from fa4 import reference
from fa4.on_hopper.modes import MODES
from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.profile.elf import read_resources
from fa4.variants import HEAD_DIMS, Variant, variants
from fa4.verify import ladder
from fa4.verify.ladder import ON_HOPPER, Effort, Outcome
from fa4.verify.subjects import BackwardSubject, Subject, subject_of
from tests.backward.broken import CHANGES, replaced

VARIANT = Variant("sm_100a", (64, 64), "causal", "bfloat16", False)
BACKWARD = replace(VARIANT, backward=True)
DETERMINISTIC = replace(BACKWARD, deterministic=True)
EVERY_PASS = pytest.mark.parametrize("variant", [VARIANT, BACKWARD], ids=str)
FEW = Effort(schedules=1, launches=2)


@pytest.fixture
def attended(monkeypatch):
    """Replaces the kernels by a list of results; the last one stays."""

    def use(*results):
        left = list(results)
        monkeypatch.setattr(ladder, "_session", lambda *_, **__: contextlib.nullcontext())
        for each in (Subject, BackwardSubject):
            monkeypatch.setattr(each, "run", lambda *_: left.pop(0) if len(left) > 1 else left[0])

    return use


def right(subject):
    """What a perfect kernel computes."""
    inputs = subject.inputs("cpu")
    if subject.variant.backward:
        found = reference.gradients(subject.problem, inputs, *subject.grads("cpu"))
        return tuple(t.to(torch.bfloat16) for t in found)
    out, lse = reference.attention(subject.problem, *inputs)
    return out.to(torch.bfloat16), lse


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("arch", HEAD_DIMS)
def test_a_subject_runs_the_kernel_of_its_variant(arch, backward):
    planned = plan_backward if backward else plan_forward
    for variant in variants(arch, backward):
        assert planned(subject_of(variant).problem, arch) == variant.plan


@pytest.mark.parametrize("arch", HEAD_DIMS)
def test_keys_make_blocks_enough_to_add_in_another_order(arch):
    for variant in variants(arch, backward=True):
        blocks = subject_of(variant).problem.seqlen_k / variant.plan.n_block
        assert 2 < blocks < 3 if variant.deterministic else 1 < blocks < 2


@EVERY_PASS
def test_a_real_kernel_is_emulated(variant):
    assert ladder.emulated(subject_of(variant), FEW) == Outcome(1)


def test_real_kernels_of_a_deterministic_backward_climb():
    on_hopper90 = replace(DETERMINISTIC, arch="sm_90a")
    outcomes = ladder.climb(on_hopper90, ("compiled", "hostile schedules", "checked"), FEW)
    assert outcomes == {
        "compiled": Outcome(3),
        "hostile schedules": Outcome(3),
        "checked": Outcome(1),
    }


def test_wrong_numbers_fail_the_emulated_rung(attended):
    out, lse = right(subject_of(VARIANT))
    attended((out, lse))
    assert not ladder.emulated(subject_of(VARIANT), FEW).failure
    attended((out, lse + 0.01))
    assert "LSE 1.00e-02" in ladder.emulated(subject_of(VARIANT), FEW).failure


@pytest.mark.parametrize("broken", range(3), ids=["dQ", "dK", "dV"])
def test_a_wrong_gradient_fails_the_emulated_rung(broken, attended):
    gradients = list(right(subject_of(BACKWARD)))
    attended(tuple(gradients))
    assert not ladder.emulated(subject_of(BACKWARD), FEW).failure
    gradients[broken] = gradients[broken] * 1.05
    attended(tuple(gradients))
    assert "limit" in ladder.emulated(subject_of(BACKWARD), FEW).failure


def test_a_kernel_that_breaks_its_order_fails_the_rung_of_schedules():
    few = Effort(schedules=2)
    with replaced(*CHANGES["no wait for the turn"]):
        failed = ladder.hostile_schedules(subject_of(DETERMINISTIC), few)
    assert failed.failure.endswith("other bits than early")


def test_a_sum_in_any_order_fails_the_checked_rung():
    with replaced(r"ld\.acquire\.gpu", "ld.relaxed.gpu"):
        failed = ladder.checked(subject_of(DETERMINISTIC), FEW)
    assert "added to memory in no fixed order" in failed.failure


def test_a_missing_fence_fails_the_checked_rung():
    with replaced(r"fence\.proxy\.async\S*;", ""):
        failed = ladder.climb(BACKWARD, ("checked",), FEW)["checked"]
    assert failed.failure.startswith("CheckError")


def test_other_bits_fail_the_rung_of_schedules(attended):
    out, lse = right(subject_of(VARIANT))
    attended((out, lse))
    assert ladder.hostile_schedules(subject_of(VARIANT), FEW) == Outcome(3)
    attended((out, lse), (out, lse), (out + 1, lse))
    failed = ladder.hostile_schedules(subject_of(VARIANT), FEW)
    assert failed == Outcome(2, "schedule 'random' seed 0: other bits than early")


def test_a_role_without_its_registers_fails_to_compile(monkeypatch):
    monkeypatch.setattr(ladder, "unmet_registers", lambda *_: {"softmax": 192})
    failed = ladder.compiled(subject_of(VARIANT), FEW)
    assert failed == Outcome(1, "softmax does not get 192 registers")


def test_launches_on_hopper_stop_at_the_first_failure(attended):
    hopper = Variant("sm_90a", (64, 64), "causal", "bfloat16", False)
    out, lse = right(subject_of(hopper))
    attended((out, lse), (out * 2, lse))
    failed = ladder.on_hopper(subject_of(hopper), Effort(launches=5))
    assert failed.runs == 2
    assert failed.failure.startswith("O ")


def test_launches_on_hopper_have_the_same_bits(attended):
    dq, dk, dv = right(subject_of(BACKWARD))
    other = torch.nextafter(dq, dq + 1)
    hopper = replace(BACKWARD, arch="sm_90a")
    attended((dq, dk, dv), (dq, dk, dv), (other, dk, dv))
    failed = ladder.on_hopper(subject_of(hopper), Effort(launches=5))
    assert failed == Outcome(3, "other bits than the first launch")


def test_a_spilling_kernel_before_or_after_the_main_one_fails_to_compile(monkeypatch):
    def resources(cubin):
        return [replace(r, stack=8 * ("_rows" in r.kernel)) for r in read_resources(cubin)]

    monkeypatch.setattr(ladder, "read_resources", resources)
    failed = ladder.compiled(subject_of(BACKWARD), FEW)
    assert failed == Outcome(3, "8 bytes of stack in fa4_bwd_d64_bfloat16_right_rows_0")
    monkeypatch.setattr(ladder, "read_resources", lambda cubin: read_resources(cubin)[:2])
    failed = ladder.compiled(subject_of(BACKWARD), FEW)
    assert failed == Outcome(2, "2 kernels instead of 3")


def test_a_kernel_climbs_until_it_fails(monkeypatch):
    climbed = []

    def rung(name, outcome):
        def step(*_):
            climbed.append(name)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return step

    steps = {"a": Outcome(3), "b": RuntimeError("broken"), "c": Outcome(1)}
    monkeypatch.setattr(ladder, "RUNGS", {name: rung(name, o) for name, o in steps.items()})
    outcomes = ladder.climb(VARIANT, ("a", "b", "c"), FEW)
    assert outcomes == {"a": Outcome(3), "b": Outcome(1, "RuntimeError: broken")}
    assert climbed == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "alive", "lost"),
    [
        (TimeoutError("still runs"), True, True),
        (RuntimeError("illegal address"), False, True),
        (RuntimeError("no such instruction"), True, False),
    ],
)
def test_a_kernel_that_takes_the_gpu_along_is_marked(error, alive, lost, monkeypatch):
    def step(*_):
        raise error

    def synchronize():
        if not alive:
            raise RuntimeError("illegal address")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(ladder, "RUNGS", dict.fromkeys((ON_HOPPER, "emulated"), step))
    assert ladder.climb(VARIANT, (ON_HOPPER,), FEW)[ON_HOPPER].lost == lost
    assert not ladder.climb(VARIANT, ("emulated",), FEW)["emulated"].lost


def test_launches_go_through_the_modes_in_turn(attended, monkeypatch):
    opened = []

    def session(modes, seed):
        opened.append((modes, seed))
        return contextlib.nullcontext()

    monkeypatch.setattr(fa4.on_hopper, "Session", session)
    attended(right(subject_of(VARIANT)))
    assert ladder.on_hopper(subject_of(VARIANT), Effort(launches=8)) == Outcome(8)
    modes = list(MODES.values())
    assert opened == list(zip(modes + modes[:2], range(8), strict=True))


def test_what_this_machine_cannot_climb(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ladder.missing("on Hopper silicon") == "no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "B200")
    assert ladder.missing("on Hopper silicon") == "B200 has compute capability 10.0, not 9.0"
    assert ladder.missing("emulated") == ""
