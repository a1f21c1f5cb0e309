"""mbarrier phases, named barriers, setmaxnreg, deadlock reports, and what is an error."""

import time

import numpy as np
import pytest

from fa4.emulator.errors import BarrierError, DeadlockError, RegisterError
from fa4.emulator.labels import BarrierLabel, Labels
from fa4.emulator.observe import Observer
from fa4.emulator.program import Schedule
from tests.emulator.ptx_kernels import KINDS, run, wait

INIT = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0;
@%p1 mbarrier.init.shared.b64 [%r1], {count}; bar.sync 0;
"""


@pytest.mark.parametrize("kind", KINDS)
def test_phases_order_a_producer_and_a_consumer(kind):
    out = np.zeros(8, np.uint32)
    body = (
        """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; @!%p1 bra READY;
    mbarrier.init.shared.b64 [%r1], 32; mbarrier.init.shared.b64 [%r1+8], 32;
    READY: bar.sync 0; mov.u32 %r2, 0; mov.u32 %r3, 0; shr.u32 %r4, %r99, 5;
    add.u32 %r9, %r1, 8; setp.eq.u32 %p2, %r4, 1; @%p2 bra CONSUMER;
    P: and.b32 %r5, %r2, 1; xor.b32 %r6, %r5, 1;"""
        + wait("%r9", "%r6", "PW")
        + """
    @%p1 st.shared.u32 [%r1+64], %r2; mbarrier.arrive.shared.b64 _, [%r1];
    add.u32 %r2, %r2, 1; setp.lt.u32 %p3, %r2, 8; @%p3 bra P; bra END;
    CONSUMER: and.b32 %r5, %r2, 1;"""
        + wait("%r1", "%r5", "CW")
        + """
    ld.shared.u32 %r7, [%r1+64]; mul.wide.u32 %d1, %r2, 4; add.u64 %d1, %d1, %d50;
    st.global.u32 [%d1], %r7; mbarrier.arrive.shared.b64 _, [%r9];
    add.u32 %r2, %r2, 1; setp.lt.u32 %p3, %r2, 8; @%p3 bra CONSUMER; END:"""
    )
    run(body, out, threads=64, smem=256, schedule=Schedule(kind, 5))
    assert out.tolist() == list(range(8))


def test_test_wait_answers_at_once_and_tokens_work():
    out = np.zeros(1, np.uint32)
    body = (
        INIT.format(count=32)
        + """mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0;
    mbarrier.test_wait.parity.shared.b64 %p3, [%r1], 1;
    mbarrier.arrive.shared.b64 %d1, [%r1]; mbarrier.test_wait.shared.b64 %p4, [%r1], %d1;
    selp.b32 %r2, 1, 0, %p2; selp.b32 %r3, 2, 0, %p3; selp.b32 %r4, 4, 0, %p4;
    or.b32 %r2, %r2, %r3; or.b32 %r2, %r2, %r4; @%p1 st.global.u32 [%d50], %r2;"""
    )
    run(body, out, smem=64)
    assert out[0] == 6


def test_over_arrival():
    with pytest.raises(BarrierError, match="over-arrival"):
        run(INIT.format(count=31) + "mbarrier.arrive.shared.b64 _, [%r1];", smem=64)


def test_uninitialised_and_invalidated():
    with pytest.raises(BarrierError, match="not initialised"):
        run("mov.u32 %r1, smem; mbarrier.arrive.shared.b64 _, [%r1];", smem=64)
    with pytest.raises(BarrierError, match="invalidated"):
        run(
            INIT.format(count=1)
            + "@%p1 mbarrier.inval.shared.b64 [%r1]; bar.sync 0;"
            + wait("%r1", 0, "W"),
            smem=64,
        )


def test_counts_that_ptx_forbids():
    with pytest.raises(BarrierError, match="count 0"):
        run(INIT.format(count=0), smem=64)
    with pytest.raises(BarrierError, match="multiple of 32"):
        run("bar.sync 1, 40;", threads=64)
    with pytest.raises(BarrierError, match="0 to 15"):
        run("bar.sync 16, 64;", threads=64)


def test_named_barrier_counts_must_agree():
    body = """shr.u32 %r1, %r99, 5; setp.eq.u32 %p1, %r1, 0; selp.b32 %r2, 64, 96, %p1;
    bar.sync 3, %r2;"""
    with pytest.raises(BarrierError, match=r"gives (64|96) threads, earlier arrivals gave (64|96)"):
        run(body, threads=64, schedule=Schedule("random", 1))


def test_transaction_bytes_hold_a_phase_open():
    body = INIT.format(count=1) + "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 48;"
    body += wait("%r1", 0, "W")
    with pytest.raises(DeadlockError) as error:
        run(body, smem=64)
    assert "0 of 1 arrivals pending, 48 bytes outstanding" in str(error.value)


LABELS = Labels(
    warps=("load", "mma"),
    mbarriers={0: BarrierLabel("scores_computed", 1, ("mma",), ("softmax",))},
    named_barriers={4: BarrierLabel("ready", 0, ("epilogue",), ("load",))},
)


@pytest.mark.parametrize("kind", KINDS)
def test_deadlock_is_a_table_within_a_second(kind):
    body = (
        INIT.format(count=1)
        + """shr.u32 %r5, %r99, 5; setp.eq.u32 %p2, %r5, 1;
    @%p2 bra SECOND;
    .loc 1 77 1
    bar.sync 4, 96; bra END;
    SECOND:
    .loc 1 88 1"""
        + wait("%r1", 0, "W")
        + "END:"
    )
    start = time.perf_counter()
    with pytest.raises(DeadlockError) as error:
        run(body, threads=64, smem=64, schedule=Schedule(kind), labels=LABELS)
    assert time.perf_counter() - start < 1
    load, mma = str(error.value).splitlines()[-2:]
    assert "load" in load
    assert "named barrier 4 ready[0]" in load
    assert "32 of 96 threads" in load
    assert "epilogue" in load
    assert "?:77" in load
    assert "scores_computed[1]" in mma
    assert "phase 0: 1 of 1 arrivals pending" in mma
    assert "?:88" in mma


def test_deadlock_without_labels_names_who_signalled():
    body = INIT.format(count=2) + "@%p1 mbarrier.arrive.shared.b64 _, [%r1];" + wait("%r1", 0, "W")
    with pytest.raises(DeadlockError, match="signalled so far by warp 0"):
        run(body, smem=64)


def test_a_warp_that_polls_memory_for_ever_is_reported():
    start = time.perf_counter()
    body = "L: ld.global.u32 %r1, [%d50]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"
    with pytest.raises(DeadlockError, match="poll memory"):
        run(body, np.zeros(1, np.uint32))
    assert time.perf_counter() - start < 2


def test_a_cta_may_wait_for_a_later_one():
    out = np.zeros(3, np.uint32)
    body = """mov.u32 %r1, %ctaid.x; mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %d1, %d50;
    setp.eq.u32 %p1, %r1, 2; @%p1 bra GO;
    L: ld.global.u32 %r2, [%d1+4]; setp.eq.u32 %p2, %r2, 0; @%p2 bra L;
    GO: st.global.u32 [%d1], 5;"""
    run(body, out, ctas=3)
    assert out.tolist() == [5, 5, 5]


REGISTERS = """shr.u32 %r1, %r99, 7; setp.eq.u32 %p1, %r1, 0; @%p1 bra GIVE;
setmaxnreg.inc.sync.aligned.u32 {more}; bra END;
GIVE: setmaxnreg.dec.sync.aligned.u32 {less}; END:"""


@pytest.mark.parametrize("kind", KINDS)
def test_setmaxnreg_waits_for_the_pool(kind):
    run(
        REGISTERS.format(more=200, less=56),
        threads=256,
        directives=".maxnreg 128",
        schedule=Schedule(kind),
    )
    with pytest.raises(DeadlockError, match=r"for setmaxnreg\.inc 208"):
        run(
            REGISTERS.format(more=208, less=56),
            threads=256,
            directives=".maxnreg 128",
            schedule=Schedule(kind),
        )


def test_setmaxnreg_in_a_part_of_a_warpgroup():
    body = "setp.lt.u32 %p1, %r99, 32; @%p1 bra END; setmaxnreg.dec.sync.aligned.u32 24; END:"
    with pytest.raises(RegisterError, match="by all warps of a warpgroup"):
        run(body, threads=128, directives=".maxnreg 64")
    whole = body.replace("%r99, 32", "%r99, 128")
    run(whole, threads=256, directives=".maxnreg 64")


def test_setmaxnreg_errors():
    with pytest.raises(RegisterError, match="multiple of 8"):
        run("setmaxnreg.dec.sync.aligned.u32 50;", threads=128)
    with pytest.raises(RegisterError, match=r"setmaxnreg.dec 128 in a warp that holds 64"):
        run("setmaxnreg.dec.sync.aligned.u32 128;", threads=128, directives=".maxnreg 64")


class Notes(Observer):
    """What an observer is told, as (what, barrier, warps)."""

    def __init__(self):
        self.seen = []

    def signalled(self, barrier):
        warps = [warp.index for warp in barrier.cta.cluster.running.acting_warps()]
        self.seen.append(("signalled", str(barrier)[:9], warps))

    def waited(self, team, wait):
        warps = [warp.index for warp in team.acting_warps()]
        self.seen.append(("waited", wait.target()[:9], warps))

    def ended(self, cta):
        self.seen.append(("ended", "", [warp.index for warp in cta.warps]))


def test_an_observer_is_told_who_arrives_and_who_goes_on():
    notes = Notes()
    body = INIT.format(count=32) + "setp.lt.u32 %p2, %r99, 32; @%p2 bra ARRIVE;"
    body += wait("%r1", 0, "W") + "bra END; ARRIVE: mbarrier.arrive.shared.b64 _, [%r1]; END:"
    run(body, smem=64, threads=64, observer=notes)
    about_all = [("signalled", "named bar", [0, 1]), ("waited", "named bar", [0, 1])]
    assert notes.seen[:2] == about_all
    mbarrier = [note for note in notes.seen if note[1] == "mbarrier "]
    assert mbarrier == [("signalled", "mbarrier ", [0]), ("waited", "mbarrier ", [1])]
    assert notes.seen[-1] == ("ended", "", [0, 1])


def test_an_observer_tells_warps_in_lock_step_apart():
    notes = Notes()
    body = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0;
    @%p1 mbarrier.init.shared.b64 [%r1], 32; @%p1 mbarrier.init.shared.b64 [%r1+8], 32;
    bar.sync 0; shr.u32 %r2, %r99, 5; shl.b32 %r2, %r2, 3; add.u32 %r1, %r1, %r2;
    mbarrier.arrive.shared.b64 _, [%r1];""" + wait("%r1", 0, "W")
    run(body, smem=64, threads=64, observer=notes)
    told = [(what, warps) for what, barrier, warps in notes.seen if barrier == "mbarrier "]
    assert told == [("signalled", [0]), ("signalled", [1]), ("waited", [0, 1])]
