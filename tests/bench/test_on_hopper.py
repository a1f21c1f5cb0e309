"""`bench on-hopper`: its problems go through all kernels, and nothing that happens is lost."""

from types import SimpleNamespace

import pytest
import torch

import fa4.on_hopper
from bench.hopper.problems import Trial
from bench.on_hopper import command, work
from bench.on_hopper.trials import (
    LONGEST,
    LONGEST_BACKWARD,
    VARIANTS,
    Task,
    backward_trial,
    small_trial,
    variant_trial,
)
from fa4 import emulator
from fa4.on_hopper.modes import MODES
from fa4.plan import plan_forward


@pytest.mark.parametrize("trial", [variant_trial, small_trial, backward_trial])
def test_problems_go_through_the_variants_in_turn(trial):
    for seed in range(3 * len(VARIANTS)):
        assert plan_forward(trial(seed).problem()) == VARIANTS[seed % len(VARIANTS)].plan


def test_only_a_hopper_will_do(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "B200")
    assert command.main([]) == 2
    assert "B200 has compute capability 10.0, not 9.0" in capsys.readouterr().out


def test_problems_are_random_and_long_ones_among_them():
    trials = [variant_trial(seed) for seed in range(500)]
    assert len({str(trial) for trial in trials}) == 500
    lengths = [trial.lengths for trial in trials]
    assert lengths.count((LONGEST, LONGEST)) == 24
    assert max(max(pair) for pair in lengths) == LONGEST
    assert str(variant_trial(77)) == str(trials[77])


def test_every_problem_is_planned_in_every_mode():
    tasks = command.planned(command.parse(["--first", "5", "--count", "3"]))
    assert [(task.trial.seed, task.mode) for task in tasks] == [
        (seed, mode) for seed in (5, 6, 7) for mode in MODES
    ]


def test_gradients_are_planned_on_request():
    tasks = command.planned(command.parse(["--backward", "--count", "40", "--modes", "all"]))
    assert all(task.backward for task in tasks)
    assert max(max(task.trial.lengths) for task in tasks) == LONGEST_BACKWARD
    with pytest.raises(SystemExit):
        command.parse(["--backward", "--emulator"])


class Emulated:
    """Stands for a session on a Hopper GPU: the same kernels as they are, in the emulator."""

    def __init__(self, _modes, seed):
        self.session = emulator.session(seed=seed, arch="sm_100a")

    def __enter__(self):
        self.session.__enter__()
        return self

    def __exit__(self, *raised):
        self.session.__exit__(*raised)

    @property
    def launches(self):
        return [SimpleNamespace(name=launch.name, seconds=0.5) for launch in self.session.launches]


@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_are_compared(monkeypatch, seed):
    inputs = Trial.inputs
    monkeypatch.setattr(Trial, "inputs", lambda trial, _: inputs(trial, "cpu"))
    monkeypatch.setattr(fa4.on_hopper, "Session", Emulated)
    record, lost = work.attempt(Task(small_trial(seed), "all", backward=True), False)
    assert (record["fault"], lost) == ("", False)
    assert record["kernel"].startswith("fa4_bwd_")
    assert record["kernel_seconds"] == 2.0
    assert 0.0 < record["out_error"] < record["out_limit"]


TASK = Task(small_trial(0), "all")


def outcomes(monkeypatch, *results):
    left = list(results)

    def run(*_):
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(work, "run", run)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    records = []
    work.work([TASK] * len(results), 60.0, False, records.append)
    return records


def test_a_fault_is_a_record_and_the_next_task_follows(monkeypatch):
    records = outcomes(monkeypatch, ValueError("odd"), {"kernel": "k", "fault": ""})
    assert [record["fault"] for record in records] == ["ValueError: odd", ""]
    assert records[0]["problem"] == str(TASK.trial)


def test_a_hang_ends_the_process_s_work(monkeypatch):
    records = outcomes(monkeypatch, TimeoutError("still runs"), {"fault": ""})
    assert [record["fault"] for record in records] == ["TimeoutError: still runs"]


def test_no_task_starts_when_the_time_is_spent():
    records = []
    work.work([TASK], -1.0, False, records.append)
    assert records == []


def test_summary_counts_what_failed_and_what_is_left():
    one = {"mode": "plain", "seed": 1, "problem": "p", "fault": "", "kernel": "a"}
    two = {"mode": "all", "seed": 2, "problem": "q", "fault": "wrong", "kernel": "b"}
    found = command.summary([one, two], 5)
    assert (found["ran"], found["failed"], found["left"], found["kernels"]) == (2, 1, 3, 2)
    assert found["faults"] == ["all 2 q: wrong"]
    assert "agreeing" not in found
    one |= {"agreeing": 1.0, "elements": 30, "lse_apart": 1e-6}
    two |= {"agreeing": 0.5, "elements": 10, "lse_apart": 2e-6}
    found = command.summary([one, two], 2)
    assert (found["agreeing"], found["least_agreeing"]) == (0.875, 0.5)
    assert found["largest_lse_apart"] == 2e-6


def test_a_kernel_s_line_holds_its_worst_run():
    runs = [
        {"kernel": "a", "out_error": 1.0, "out_limit": 4.0, "agreeing": 0.999},
        {"kernel": "a", "out_error": 1.0, "out_limit": 2.0, "agreeing": 1.0},
        {"kernel": "b", "out_error": 0.0, "out_limit": 1.0},
        {"kernel": "", "fault": "lost before its launch"},
    ]
    assert command.by_kernel(runs) == {
        "a": {"runs": 2, "error_of_limit": 0.5, "agreeing": 0.999},
        "b": {"runs": 1, "error_of_limit": 0.0},
    }
