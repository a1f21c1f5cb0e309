"""The emulator's timeline of roles, and the table, trace and picture of any timeline."""

import importlib.util
import itertools
import json
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from fa4 import emulator
from fa4.problem import example_problem
from fa4.profile.emulated import RoleClocks
from fa4.profile.picture import draw
from fa4.profile.timeline import Arrival, Timeline, Track, Wait, shares, shares_text
from fa4.profile.trace import timeline_of, trace_events
from fa4.profile.workload import workload
from tests.emulator.ptx_kernels import run, wait

ARCHS = ("sm_100a", "sm_90a")
LATE = 50  # instructions that the signaller executes first

# Warp `signaller` works and arrives; the other one waits. The emulator starts with warp 0.
PAIR = (
    """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0;
@%p1 mbarrier.init.shared.b64 [%r1], 32; bar.sync 0; shr.u32 %r2, %r99, 5;
setp.eq.u32 %p2, %r2, {signaller}; @%p2 bra SIGNAL;"""
    + wait("%r1", 0, "W")
    + "bra END; SIGNAL: "
    + "add.u32 %r3, %r3, 1; " * LATE
    + "mbarrier.arrive.shared.b64 _, [%r1]; END:"
)


@pytest.mark.parametrize("signaller", [0, 1])
def test_a_wait_lasts_until_the_arrival_whoever_the_emulator_runs_first(signaller):
    clocks = RoleClocks()
    run(PAIR.format(signaller=signaller), smem=64, threads=64, observer=clocks)
    timeline = clocks.timeline("pair")
    (found,) = [w for w in timeline.waits if w.edge.startswith("mbarrier")]
    assert (found.warp, found.ended_by.warp) == (1 - signaller, signaller)
    assert found.end == found.ended_by.at
    assert LATE <= found.end - found.begin <= LATE + 3
    waiter, other = (
        next(t for t in timeline.tracks if t.warp == w) for w in (1 - signaller, signaller)
    )
    assert other.end == other.executed
    assert waiter.end == waiter.executed + found.end - found.begin


# Warps 0 and 1 arrive, and one of them works first; warp 2 waits for both.
BOTH = (
    """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0;
@%p1 mbarrier.init.shared.b64 [%r1], 64; bar.sync 0; shr.u32 %r2, %r99, 5;
setp.eq.u32 %p2, %r2, {late}; @%p2 bra WORK; setp.eq.u32 %p3, %r2, 2; @!%p3 bra SIGNAL;"""
    + wait("%r1", 0, "W")
    + "bra END; WORK: "
    + "add.u32 %r3, %r3, 1; " * LATE
    + "SIGNAL: mbarrier.arrive.shared.b64 _, [%r1]; END:"
)


@pytest.mark.parametrize("late", [0, 1])
def test_the_latest_arrival_ends_a_wait_not_the_one_emulated_last(late):
    clocks = RoleClocks()
    run(BOTH.format(late=late), smem=64, threads=96, observer=clocks)
    (found,) = [w for w in clocks.waits if w.edge.startswith("mbarrier")]
    assert (found.warp, found.ended_by.warp) == (2, late)
    assert found.end >= LATE


@pytest.fixture(scope="module", params=ARCHS)
def observed(request):
    """(workload, launch record, timeline) of a causal kernel with two tiles per CTA."""
    problem = example_problem(64, causal=True, seqlen_q=512, seqlen_k=512, scale=0.1)
    load = workload(problem, request.param, torch.device("cpu"))
    clocks = RoleClocks()
    with emulator.session(arch=request.param, num_sms=1, observer=clocks) as session:
        load.launch()
    return load, session.launches[0], clocks.timeline("two tiles")


def test_every_executed_instruction_is_on_a_track(observed):
    load, launch, timeline = observed
    by_role = defaultdict(int)
    for track in timeline.tracks:
        by_role[track.role] += track.executed
    assert by_role == launch.stats.by_role
    assert {track.warp: track.role for track in timeline.tracks} == {
        warp: role for role, r in load.plan.roles.items() for warp in range(r.first, r.end)
    }


def test_time_is_work_or_waiting(observed):
    _, _, timeline = observed
    waits = timeline.waits_of()
    for track in timeline.tracks:
        own = waits[track.cta, track.warp]
        assert track.end - track.begin == track.executed + sum(w.end - w.begin for w in own)
        for earlier, later in itertools.pairwise(own):
            assert earlier.begin < earlier.end <= later.begin


def test_waits_are_ended_by_the_other_end_of_their_edge(observed):
    load, _, timeline = observed
    edges = {edge.name: edge for edge in load.plan.edges()}
    role = {(track.cta, track.warp): track.role for track in timeline.tracks}
    seen = set()
    for w in timeline.waits:
        name, _, released = w.edge.partition(" ")
        if name not in edges:
            continue  # a barrier between warps of one role, or of all
        seen.add(name)
        ends = (edges[name].producer, edges[name].consumer)
        ends = ends[::-1] if released else ends
        signaller = role[w.ended_by.cta, w.ended_by.warp]
        assert (signaller, role[w.cta, w.warp]) == ends
        assert w.stage < edges[name].stages
    assert len(seen) >= 4


TWO = Timeline(
    title="two warps",
    unit="ticks",
    note="By hand.",
    tracks=(Track(0, 0, "load", 0, 100, 60), Track(0, 1, "mma", 0, 80, 50)),
    waits=(
        Wait(0, 0, "kv_loaded released", 1, 10, 50, Arrival(0, 1, 50)),
        Wait(0, 1, "q_loaded", 0, 20, 40),
        Wait(0, 1, "q_loaded", 1, 60, 70),
    ),
)


def test_shares_add_up():
    load, mma = shares(TWO)
    assert (load.role, load.executed, load.ticks, load.waiting) == ("load", 60, 100, 0.4)
    assert (mma.ticks, mma.waiting) == (80, 30 / 80)
    (edge,) = mma.edges
    assert (edge.edge, edge.waits, edge.ticks, edge.longest) == ("q_loaded", 2, 30, 20)
    text = shares_text(TWO)
    assert "Unit: ticks. By hand." in text
    assert "37.5%" in text


def test_the_trace_has_every_tick_of_every_warp_once():
    trace = trace_events(TWO)
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    mma = [(e["name"], e["ts"], e["dur"]) for e in slices if e["tid"] == 1]
    assert mma == [
        ("run", 0.0, 0.02),
        ("q_loaded[0]", 0.02, 0.02),
        ("run", 0.04, 0.02),
        ("q_loaded[1]", 0.06, 0.01),
        ("run", 0.07, 0.01),
    ]
    start, end = (e for e in trace["traceEvents"] if e["ph"] in "sf")
    assert (start["tid"], end["tid"], start["id"]) == (1, 0, end["id"])
    assert start["ts"] == end["ts"] == 0.0495
    assert trace["otherData"]["unit"] == "ticks"
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {f"CTA 0 {role} (1 ns shown = 1 of: ticks)" for role in ("load", "mma")}


def test_a_timeline_can_be_read_back_from_its_trace():
    read = timeline_of(json.loads(json.dumps(trace_events(TWO))))
    assert read.tracks == tuple(replace(track, executed=None) for track in TWO.tracks)
    assert read.waits == tuple(replace(w, ended_by=None) for w in TWO.waits)
    assert (read.title, read.unit, read.note) == (TWO.title, TWO.unit, TWO.note)
    with pytest.raises(ValueError, match="no trace of `fa4 profile`"):
        timeline_of({"traceEvents": []})
    with pytest.raises(ValueError, match="it has no slices"):
        timeline_of(trace_events(replace(TWO, tracks=(), waits=())))


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="extra `plot`")
def test_the_picture_is_drawn(tmp_path):
    draw(TWO, tmp_path / "two.png", 0)
    assert (tmp_path / "two.png").read_bytes()[:4] == b"\x89PNG"
