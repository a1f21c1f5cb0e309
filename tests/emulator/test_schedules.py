"""Schedules: runs are reproducible, results do not depend on them, races show up."""

import numpy as np
import pytest

from fa4.emulator.errors import DeadlockError
from fa4.emulator.program import Schedule
from fa4.emulator.sessions import session
from tests.emulator.ptx_kernels import KINDS, run, wait

# Warps 0-3 take numbers from a counter and write down in which order they came.
ORDER = """and.b32 %r1, %r99, 31; setp.eq.u32 %p1, %r1, 0; shr.u32 %r2, %r99, 5; mov.u32 %r4, 0;
L: @!%p1 bra S; atom.global.add.u32 %r3, [%d50], 1;
mul.wide.u32 %d1, %r3, 4; add.u64 %d1, %d1, %d51;
st.global.u32 [%d1], %r2;
S: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 16; @%p2 bra L;"""


def order(kind, seed):
    counter, out = np.zeros(1, np.uint32), np.zeros(128, np.uint32)
    run(ORDER, counter, out, threads=256, schedule=Schedule(kind, seed))
    return out.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_a_function_of_kind_and_seed(kind):
    assert order(kind, 7) == order(kind, 7)
    different = {tuple(order(kind, seed)) for seed in range(6)}
    assert len(different) > 1 if kind in ("random", "priority") else len(different) == 1


RACE = """mov.u32 %r1, smem; shr.u32 %r2, %r99, 5; setp.eq.u32 %p1, %r99, 32; mov.u32 %r5, 7;
setp.eq.u32 %p3, %r99, 0; @%p3 mbarrier.init.shared.b64 [%r1], 1; bar.sync 0;
@%p1 st.shared.u32 [%r1+16], %r5; @%p1 mbarrier.arrive.shared.b64 _, [%r1];
setp.ne.u32 %p2, %r2, 0; @%p2 bra END;
{wait}
ld.shared.u32 %r6, [%r1+16]; mad.wide.u32 %d0, %r99, 4, %d50; st.global.u32 [%d0], %r6; END:"""


def outcomes(text, kind, seeds):
    seen = set()
    for seed in range(seeds):
        out = np.zeros(32, np.uint32)
        run(text, out, threads=64, smem=64, schedule=Schedule(kind, seed))
        seen |= set(out.tolist())
    return seen


@pytest.mark.parametrize("kind", ["random", "priority"])
def test_a_missing_wait_gives_poison_in_some_seed(kind):
    assert outcomes(RACE.format(wait=wait("%r1", 0, "W")), kind, 8) == {7}
    assert outcomes(RACE.format(wait=""), kind, 8) == {7, 0xFFFFFFFF}


EARLY_SIGNAL = """mov.u32 %r1, smem; shr.u32 %r2, %r99, 5; mov.u32 %r5, 7;
setp.eq.u32 %p3, %r99, 0; @%p3 mbarrier.init.shared.b64 [%r1], 32; bar.sync 0;
setp.eq.u32 %p2, %r2, 0; @%p2 bra READ;
mbarrier.arrive.shared.b64 _, [%r1]; st.shared.u32 [%r1+16], %r5; bra END;
READ: {wait}
ld.shared.u32 %r6, [%r1+16]; mad.wide.u32 %d0, %r99, 4, %d50; st.global.u32 [%d0], %r6; END:"""


@pytest.mark.parametrize("kind", ["random", "priority"])
def test_a_signal_before_its_data_is_seen(kind):
    assert 0xFFFFFFFF in outcomes(EARLY_SIGNAL.format(wait=wait("%r1", 0, "W")), kind, 12)


def test_unknown_kind():
    with pytest.raises(ValueError, match="'lazy' is unknown; use one of"):
        Schedule("lazy")


def test_instructions_are_counted_per_role_and_line():
    body = """.loc 1 10 1
    shr.u32 %r1, %r99, 5; setp.eq.u32 %p1, %r1, 0; @%p1 bra END;
    .loc 1 20 1
    add.u32 %r2, %r2, 1; add.u32 %r2, %r2, 1; END:"""
    stats = run(body, threads=96)
    assert stats.by_line["?", 10] == 9
    assert stats.by_line["?", 20] == 4 + 3  # the final ret has no line of its own
    assert stats.by_role["warp 1"] - stats.by_role["warp 0"] == 2
    assert stats.warp_instructions == sum(stats.by_role.values())


# CTA i waits for word i + {ahead}, then writes the one that the other of its neighbours waits for.
CHAIN = """mov.u32 %r1, %ctaid.x; add.u32 %r2, %r1, {ahead};
setp.ne.u32 %p2, %r99, 0; @%p2 bra END;
mul.wide.u32 %d1, %r2, 4; add.u64 %d1, %d1, %d50;
L: ld.acquire.gpu.global.u32 %r3, [%d1]; setp.eq.u32 %p1, %r3, 0; @%p1 bra L;
mul.wide.u32 %d2, %r1, 4; add.u64 %d2, %d2, %d50; mov.u32 %r4, 1;
st.release.gpu.global.u32 [%d2+{mine}], %r4; END:"""
AFTER_THE_FORMER = CHAIN.format(ahead=0, mine=4)
AFTER_THE_NEXT = CHAIN.format(ahead=1, mine=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resident", [None, 1, 3, 8])
def test_ctas_that_wait_for_earlier_ones(kind, resident):
    words = np.array([1, 0, 0, 0, 0, 0], np.uint32)
    run(AFTER_THE_FORMER, words, ctas=5, schedule=Schedule(kind, 1, resident))
    assert words.all()


@pytest.mark.parametrize("kind", KINDS)
def test_ctas_that_wait_for_later_ones_need_them_on_the_gpu(kind):
    words = np.array([0, 0, 0, 0, 0, 1], np.uint32)
    for resident in (None, 5):
        words[:5] = 0
        run(AFTER_THE_NEXT, words, ctas=5, schedule=Schedule(kind, 1, resident))
        assert words.all()
    words[:5] = 0
    with pytest.raises(DeadlockError, match="3 side by side; 2 have not started") as error:
        run(AFTER_THE_NEXT, words, ctas=5, schedule=Schedule(kind, 1, 3))
    assert "memory that it polls" in str(error.value)


STAMPS = """mov.u32 %r1, %ctaid.x; setp.ne.u32 %p2, %r99, 0; @%p2 bra END; mov.u32 %r4, 0;
L: atom.global.add.u32 %r3, [%d50], 1;
mul.wide.u32 %d1, %r3, 4; add.u64 %d1, %d1, %d51; st.global.u32 [%d1], %r1;
add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 40; @%p1 bra L; END:"""


@pytest.mark.parametrize("kind", ["random", "priority"])
def test_ctas_side_by_side_take_turns(kind):
    def order(seed, resident):
        counter, out = np.zeros(1, np.uint32), np.zeros(160, np.uint32)
        run(STAMPS, counter, out, ctas=4, schedule=Schedule(kind, seed, resident))
        return out.tolist()

    in_grid_order = [cta for cta in range(4) for _ in range(40)]
    assert order(0, None) == in_grid_order
    assert order(3, 4) == order(3, 4)
    assert any(order(seed, 4) != in_grid_order for seed in range(4))


def test_a_loop_that_counts_does_not_poll():
    """It changes nothing in memory, and ends all the same."""
    out = np.zeros(1, np.uint32)
    body = """mov.u32 %r1, 0; L: ld.global.u32 %r2, [%d50]; add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 500; @%p1 bra L; st.global.u32 [%d50], %r1;"""
    run(body, out)
    assert out.tolist() == [500]


def test_no_resident_cta():
    with pytest.raises(ValueError, match="resident=0: at least one"):
        Schedule("early", 0, 0)


@pytest.mark.parametrize("resident", [True, 2.5, "4"])
def test_resident_ctas_are_counted(resident):
    with pytest.raises(TypeError, match=r"resident=.*an int"):
        Schedule("early", 0, resident)
    with pytest.raises(TypeError, match=r"resident=.*an int"):
        session(resident=resident)


def test_a_session_refuses_what_its_schedule_would():
    with pytest.raises(ValueError, match="resident=0: at least one"):
        session(resident=0)
