"""Schedules: runs are reproducible, results do not depend on them, races show up."""

import numpy as np
import pytest

from fa4.emulator.program import Schedule
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
