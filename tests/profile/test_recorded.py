"""The probe in the kernel: what it records, and that a plan without one has no trace of it."""

import tempfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fa4 import emulator
from fa4.compile import _compile as compile_plan
from fa4.emulator.labels import BarrierLabel, Labels
from fa4.emulator.observe import Observer
from fa4.emulator.waits import MbarrierWait
from fa4.pipeline import pipes
from fa4.pipeline.records import SLOT_BITS, START, WORDS, IketRanges, ProbeBuffer
from fa4.plan import plan_forward
from fa4.problem import example_problem
from fa4.profile import recorded
from fa4.profile.timeline import Timeline
from fa4.profile.workload import workload

PROBLEM = example_problem(64, causal=True, seqlen_q=256, seqlen_k=256, scale=0.1)
NAMES = Labels(("load", "mma"), {0: BarrierLabel("q_loaded", 0), 8: BarrierLabel("q_loaded", 1)})
EMPTY = Timeline("by hand", "cycles", "Note.", (), ())


class Waits(Observer):
    """Counts mbarrier waits by (warp, edge[stage])."""

    def __init__(self):
        self.seen = Counter()

    def waited(self, team, wait):
        if isinstance(wait, MbarrierWait):
            for entry in wait.entries:
                for position in np.flatnonzero(entry.lanes.reshape(-1, 32).any(1)):
                    label = team.cta.label(entry.barrier.offset)
                    self.seen[team.warps[position].index, str(label)] += 1


@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_every_wait_is_recorded_once(arch, monkeypatch):
    watch = Waits()
    monkeypatch.setattr(
        recorded.emulator,
        "session",
        lambda **options: emulator.Session(observer=watch, arch=options["arch"]),
    )
    timeline = recorded.record(workload(PROBLEM, arch, torch.device("cpu")), records=64)
    assert Counter((w.warp, w.name) for w in timeline.waits) == watch.seen
    assert sum(watch.seen.values()) > 50
    assert "overwritten" not in timeline.note
    assert "named barriers, wgmma.wait_group" in timeline.note  # none of them is a wait here
    for w in timeline.waits:
        assert 0 <= w.begin <= w.end


def test_a_plan_with_a_cta_per_tile_is_refused():
    load = workload(PROBLEM, "sm_90a", torch.device("cpu"))
    load = load.with_plan(tuning=replace(load.plan.tuning, persistent=False))
    with pytest.raises(ValueError, match="persistent=False starts a CTA per tile"):
        recorded.record(load, records=64)


def ring(*records: tuple[int, int, int, int], size: int = 4) -> np.ndarray:
    """(begin, length, slot, number) -> (record, word)."""
    words = np.zeros((size, WORDS), np.int64)
    for begin, length, slot, number in records:
        words[number % size] = (begin, length | slot << 32 | number << (32 + SLOT_BITS))
    return words


def test_records_become_waits_with_times_of_their_cta():
    load = ring((1000, 7, START, 0), (1010, 5, 1, 1), (1030, 40, 2, 2))
    mma = ring((1005, 7, START, 0), (1006, 2, 1, 1))
    timeline = recorded.decode(np.stack([load, mma])[None], NAMES, EMPTY)
    assert [(w.warp, w.name, w.begin, w.end) for w in timeline.waits] == [
        (0, "q_loaded[0]", 10, 15),
        (0, "q_loaded[1]", 30, 70),
        (1, "q_loaded[0]", 6, 8),
    ]
    assert [(t.role, t.begin, t.end) for t in timeline.tracks] == [("load", 0, 70), ("mma", 5, 8)]
    assert timeline.note == "Note."


def test_overwritten_records_are_reported():
    records = [(100 + 10 * i, 5, 1, i) for i in range(1, 7)]
    full = ring(*records)
    timeline = recorded.decode(np.stack([full, np.zeros_like(full)])[None], NAMES, EMPTY)
    assert [w.begin for w in timeline.waits] == [0, 10, 20, 30]  # numbers 3 to 6
    assert "3 records were overwritten" in timeline.note
    assert len(timeline.tracks) == 1


def compiled(plan, options=""):
    """PTX of a plan, uncached, with further options of the compiler."""
    with tempfile.TemporaryDirectory() as folder:
        return compile_plan(plan, f"--keep-ptx --dump-dir={folder} {options}").__ptx__


@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_without_a_probe_the_code_is_that_of_the_bare_wait(arch, monkeypatch):
    plan = plan_forward(PROBLEM, arch)
    code = compiled(plan)
    assert "%clock64" not in code
    monkeypatch.setattr(
        pipes.Pipe, "_block", lambda pipe, bar, phase, _: pipes.cute.arch.mbarrier_wait(bar, phase)
    )
    monkeypatch.setattr(pipes, "make_probe", lambda kind, smem: None)
    assert compiled(plan) == code
    # the other kind of probe leaves nothing either, where run-iket is not at work
    plan = replace(plan, probe=IketRanges())
    monkeypatch.undo()
    assert compiled(plan).replace("_probe", "") == code


def test_run_iket_finds_a_range_for_every_kind_of_wait():
    plan = replace(plan_forward(PROBLEM, "sm_90a"), probe=IketRanges())
    ptx = compiled(plan, "iket")  # run-iket sets this option by an environment variable
    for edge in plan.edges():
        assert f"__iket_range_decl_{edge.name}_" in ptx
        assert (f"__iket_range_decl_{edge.name}_released_" in ptx) == edge.has_release


def test_a_ring_has_a_power_of_two():
    with pytest.raises(ValueError, match="records=100 per warp; take a power of two"):
        ProbeBuffer(0, 100)
