"""Each rung sees what it is for, and a kernel that fails one climbs no further."""

import contextlib

import pytest
import torch

from fa4.on_hopper import sessions
from fa4.on_hopper.modes import MODES
from fa4.variants import HEAD_DIMS, MASKS, Variant, variants
from fa4.verify import ladder
from fa4.verify.ladder import ON_HOPPER, Effort, Outcome, Subject

VARIANT = Variant("sm_100a", (64, 64), "causal", "bfloat16", False)
FEW = Effort(schedules=1, launches=2)


@pytest.fixture
def attended(monkeypatch):
    """Replaces the kernel by a list of results; the last one stays."""

    def use(*results):
        left = list(results)
        monkeypatch.setattr(ladder, "_session", lambda *_, **__: contextlib.nullcontext())
        monkeypatch.setattr(Subject, "attend", lambda *_: left.pop(0) if len(left) > 1 else left[0])

    return use


def right(subject):
    """What a perfect kernel computes."""
    from fa4.reference import attention

    out, lse = attention(subject.problem, *subject.inputs("cpu"))
    return out.to(torch.bfloat16), lse


def test_every_compiled_kernel_has_one_variant():
    blackwell, hopper = variants("sm_100a"), variants("sm_90a")
    assert len(blackwell) == len(HEAD_DIMS["sm_100a"]) * len(MASKS) * 2 * 2
    assert len({variant.plan for variant in hopper}) == len(hopper) > 96
    assert all(variant.plan.arch == variant.arch for variant in blackwell + hopper)


@pytest.mark.parametrize("arch", HEAD_DIMS)
def test_a_subject_runs_the_kernel_of_its_variant(arch):
    from fa4.plan import plan_forward

    for variant in variants(arch):
        assert plan_forward(Subject(variant).problem, arch) == variant.plan


def test_a_real_kernel_is_emulated():
    assert ladder.emulated(Subject(VARIANT), FEW) == Outcome(1)


def test_wrong_numbers_fail_the_emulated_rung(attended):
    out, lse = right(Subject(VARIANT))
    attended((out, lse))
    assert not ladder.emulated(Subject(VARIANT), FEW).failure
    attended((out, lse + 0.01))
    assert "LSE 1.00e-02" in ladder.emulated(Subject(VARIANT), FEW).failure


def test_other_bits_fail_the_rung_of_schedules(attended):
    out, lse = right(Subject(VARIANT))
    attended((out, lse))
    assert ladder.hostile_schedules(Subject(VARIANT), FEW) == Outcome(3)
    attended((out, lse), (out, lse), (out + 1, lse))
    failed = ladder.hostile_schedules(Subject(VARIANT), FEW)
    assert failed == Outcome(2, "schedule 'random' seed 0: other bits than early")


def test_a_role_without_its_registers_fails_to_compile(monkeypatch):
    monkeypatch.setattr(ladder, "unmet_registers", lambda *_: {"softmax": 192})
    failed = ladder.compiled(Subject(VARIANT), FEW)
    assert failed == Outcome(1, "softmax does not get 192 registers")


def test_launches_on_hopper_stop_at_the_first_failure(attended):
    hopper = Variant("sm_90a", (64, 64), "causal", "bfloat16", False)
    out, lse = right(Subject(hopper))
    attended((out, lse), (out * 2, lse))
    failed = ladder.on_hopper(Subject(hopper), Effort(launches=5))
    assert failed.runs == 2
    assert failed.failure.startswith("O ")


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

    monkeypatch.setattr(sessions, "Session", session)
    attended(right(Subject(VARIANT)))
    assert ladder.on_hopper(Subject(VARIANT), Effort(launches=8)) == Outcome(8)
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
