"""Shared memory: what orders generic accesses and those of copy engines, each with and without."""

import pytest

from fa4.emulator.errors import DeadlockError
from tests.checker.faults import check, faults
from tests.emulator.ptx_kernels import aligned, wait

# Warp 0 writes a word that warp 1 reads.
HANDED_OVER = """mov.u32 %r1, smem; shr.u32 %r2, %r99, 5; setp.eq.u32 %p1, %r2, 0;
@%p1 st.shared.u32 [%r1+64], %r2; {order} @!%p1 ld.shared.u32 %r3, [%r1+64];
"""
MBARRIER = """mov.u32 %r1, smem; setp.eq.u32 %p2, %r99, 0; @%p2 mbarrier.init.shared.b64 [%r1], 32;
bar.sync 0; shr.u32 %r2, %r99, 5; setp.eq.u32 %p1, %r2, 0; @!%p1 bra SECOND;
st.shared.u32 [%r1+64], %r2; {arrive} bra END;
SECOND: {wait} ld.shared.u32 %r3, [%r1+64]; END:
"""
ARRIVE = "mbarrier.arrive.shared.b64 _, [%r1];"
RELAXED = "mbarrier.arrive.relaxed.cta.shared.b64 _, [%r1];"
WAIT = wait("%r1", 0, "W")


def test_named_barriers_order():
    check(HANDED_OVER.format(order="bar.sync 0;"), threads=64, smem=128)
    found = faults(HANDED_OVER.format(order=""), threads=64, smem=128)
    assert [f.kind for f in found] in (["race"], ["unwritten"])


def test_a_named_barrier_orders_its_arrivals_only():
    body = HANDED_OVER.format(order="@!%p1 bar.sync 1, 64; @%p1 bar.arrive 1, 64;")
    check(body, threads=64, smem=128)
    late = "@%p1 bar.arrive 1, 64; @%p1 st.shared.u32 [%r1+64], %r2; @!%p1 bar.sync 1, 64;"
    (found,) = faults(HANDED_OVER.format(order=late), threads=64, smem=128)
    assert found.kind == "race"
    assert (found.first.warp, found.second.warp) == (0, 1)
    assert "a barrier between the two warps" in found.missing


def test_mbarriers_order():
    check(MBARRIER.format(arrive=ARRIVE, wait=WAIT), threads=64, smem=128)


@pytest.mark.parametrize(
    ("arrive", "wait"), [(ARRIVE, ""), (RELAXED, WAIT)], ids=["no wait", "relaxed arrival"]
)
def test_mbarriers_order_only_what_waits_for_a_release(arrive, wait):
    assert faults(MBARRIER.format(arrive=arrive, wait=wait), threads=64, smem=128)


def test_a_read_must_be_over_before_the_word_is_overwritten():
    body = """mov.u32 %r1, smem; shr.u32 %r2, %r99, 5; setp.eq.u32 %p1, %r2, 0;
    @%p1 st.shared.u32 [%r1+64], %r2; bar.sync 0; ld.shared.u32 %r3, [%r1+64]; {order}
    @%p1 st.shared.u32 [%r1+64], %r3;"""
    check(body.format(order="bar.sync 0;"), threads=64, smem=128)
    (found,) = faults(body.format(order=""), threads=64, smem=128)
    assert "overwritten" in found.message


def test_two_warps_write_one_word():
    body = "mov.u32 %r1, smem; st.shared.u32 [%r1], %r99;"
    check(body, threads=32, smem=64)
    (found,) = faults(body, threads=64, smem=64)
    assert "another write" in found.message
    check("mov.u32 %r1, smem; mov.u32 %r3, 0; bar.sync 0;", threads=64, smem=64)


def test_atomics_do_not_race_with_each_other():
    body = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; mov.u32 %r3, 0;
    @%p1 st.shared.u32 [%r1], %r3; bar.sync 0; red.shared.add.u32 [%r1], 1; {order}
    @%p1 ld.shared.u32 %r4, [%r1];"""
    check(body.format(order="bar.sync 0;"), threads=64, smem=64)
    (found,) = faults(body.format(order=""), threads=64, smem=64)
    assert found.first.instruction.root == "red"


@pytest.mark.parametrize(
    ("store", "load", "clean"),
    [
        ("st.release.cta", "ld.acquire.cta", True),
        ("st.relaxed.cta", "ld.acquire.cta", False),
        ("st.release.cta", "ld.relaxed.cta", False),
        ("fence.acq_rel.cta; st.relaxed.cta", "ld.relaxed.cta", False),
    ],
)
def test_flags_in_shared_memory(store, load, clean):
    body = f"""mov.u32 %r1, smem; shr.u32 %r2, %r99, 5; setp.eq.u32 %p1, %r2, 0; mov.u32 %r3, 0;
    setp.eq.u32 %p2, %r99, 0; @%p2 st.shared.u32 [%r1], %r3; bar.sync 0; mov.u32 %r4, 1;
    @!%p1 bra SECOND; st.shared.u32 [%r1+64], %r2; bar.warp.sync -1;
    {store}.shared.u32 [%r1], %r4; bra END;
    SECOND: {load}.shared.u32 %r5, [%r1]; setp.eq.u32 %p3, %r5, 0; @%p3 bra SECOND;
    ld.shared.u32 %r6, [%r1+64]; END:"""
    found = faults(body, threads=64, smem=128)
    assert (not found) == clean
    if "fence" in store:
        check(
            body.replace("ld.shared.u32 %r6", "fence.acq_rel.cta; ld.shared.u32 %r6"),
            threads=64,
            smem=128,
        )


def test_unwritten_words():
    (found,) = faults("mov.u32 %r1, smem; ld.shared.u32 %r2, [%r1+4];", smem=64)
    assert found.kind == "unwritten"
    assert found.first is None
    check("mov.u32 %r1, smem; st.shared.u32 [%r1+4], %r1; ld.shared.u32 %r2, [%r1+4];", smem=64)


# ---- copies

LOAD = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; @%p1 mbarrier.init.shared.b64 [%r1], 1;
{fence} bar.sync 0; @!%p1 bra REST;
mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 64;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1+64], [%d50], 64, [%r1];
REST: {wait} ld.shared.u32 %r3, [%r1+64];
"""
INIT_FENCE = "@%p1 fence.mbarrier_init.release.cluster;"


def test_a_bulk_load_is_over_when_its_barrier_says_so():
    source = aligned(64)
    check(LOAD.format(fence=INIT_FENCE, wait=WAIT), source, smem=256)
    race, unfinished = faults(LOAD.format(fence=INIT_FENCE, wait=""), source, smem=256)
    assert "a wait for phase 0 of mbarrier" in race.missing
    assert "no warp waits for" in unfinished.message


def test_an_engine_needs_a_fence_behind_the_init():
    (found,) = faults(LOAD.format(fence="", wait=WAIT), aligned(64), smem=256)
    assert "fence.mbarrier_init" in found.message


STORE = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; mad.lo.u32 %r2, %r99, 4, %r1;
st.shared.u32 [%r2], %r99; {fence} bar.sync 0; @!%p1 bra REST;
cp.async.bulk.global.shared::cta.bulk_group [%d50], [%r1], 128;
{commit} {wait}
REST: bar.sync 0; {after}
"""
PROXY = "fence.proxy.async.shared::cta;"
COMMIT = "cp.async.bulk.commit_group;"
READ = "cp.async.bulk.wait_group.read 0;"
AGAIN = "st.shared.u32 [%r2], %r99;"


def test_a_bulk_store_needs_a_proxy_fence_and_a_wait():
    parts = {"fence": PROXY, "commit": COMMIT, "wait": READ, "after": AGAIN}
    out = aligned(128)
    check(STORE.format(**parts), out, smem=256)
    (found,) = faults(STORE.format(**parts | {"fence": ""}), out, smem=256)
    assert "fence.proxy.async" in found.missing
    race, unfinished = faults(STORE.format(**parts | {"wait": ""}), out, smem=256)
    assert "overwritten" in race.message
    assert "wait_group" in race.missing
    assert "wait_group" in unfinished.message
    assert len(faults(STORE.format(**parts | {"commit": ""}), out, smem=256)) == 2
    late = parts | {"wait": "cp.async.bulk.wait_group.read 1;"}
    assert len(faults(STORE.format(**late), out, smem=256)) == 2


def test_nothing_is_in_flight_when_a_cta_ends():
    parts = {"fence": PROXY, "commit": COMMIT, "wait": READ, "after": ""}
    check(STORE.format(**parts), aligned(128), smem=256)
    (found,) = faults(STORE.format(**parts | {"wait": ""}), aligned(128), smem=256)
    assert found.kind == "misuse"
    assert "may end before this bulk store" in found.message


COPY = """mov.u32 %r1, smem; mul.wide.u32 %d0, %r99, 16; add.u64 %d0, %d0, %d50;
mad.lo.u32 %r2, %r99, 16, %r1; cp.async.cg.shared.global [%r2], [%d0], 16;
cp.async.commit_group; {wait} bar.sync 0; ld.shared.u32 %r3, [%r1];
"""


def test_cp_async_is_over_when_its_group_is():
    source = aligned(1024)
    check(COPY.format(wait="cp.async.wait_group 0;"), source, threads=64, smem=1024)
    assert faults(COPY.format(wait=""), source, threads=64, smem=1024)
    assert faults(COPY.format(wait="cp.async.wait_group 1;"), source, threads=64, smem=1024)


def test_cp_async_to_an_engine_without_a_proxy_fence_is_a_remark():
    body = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; mad.lo.u32 %r2, %r99, 16, %r1;
    mul.wide.u32 %d0, %r99, 16; add.u64 %d0, %d0, %d50;
    cp.async.cg.shared.global [%r2], [%d0], 16; cp.async.commit_group; cp.async.wait_group 0;
    {fence} bar.sync 0; @!%p1 bra END;
    cp.async.bulk.global.shared::cta.bulk_group [%d51], [%r1], 512;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; END:"""
    arrays = (aligned(512), aligned(512))
    assert check(body.format(fence=PROXY), *arrays, smem=512).remarks == []
    (remark,) = check(body.format(fence=""), *arrays, smem=512).remarks
    assert "words that cp.async wrote" in remark


# ---- barriers


def test_a_barrier_initialised_twice():
    init = "mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; @%p1 mbarrier.init.shared.b64 [%r1], 1;"
    inval = "@%p1 mbarrier.inval.shared.b64 [%r1];"
    check(init + inval + init, smem=64)
    (found,) = faults(init + init, smem=64)
    assert "initialised again" in found.message


def test_a_barrier_used_before_its_init_is_ordered():
    body = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; shr.u32 %r2, %r99, 5;
    @%p1 mbarrier.init.shared.b64 [%r1], 64; {order} mbarrier.arrive.shared.b64 _, [%r1];"""
    check(body.format(order="bar.sync 0;"), threads=64, smem=64)
    (found,) = faults(body.format(order=""), threads=64, smem=64)
    assert "mbarrier.init before" in found.message


# Warp 1 waits for each phase of a barrier that warp 0 completes when a flag lets it.
PACED = """mov.u32 %r1, smem; setp.eq.u32 %p2, %r99, 0; mov.u32 %r4, 0; mov.u32 %r7, 0;
@%p2 mbarrier.init.shared.b64 [%r1], 32; @%p2 st.shared.u32 [%r1+16], %r7; bar.sync 0;
shr.u32 %r2, %r99, 5; setp.eq.u32 %p1, %r2, 1; @%p1 bra SECOND;
FIRST: {load}.shared.u32 %r8, [%r1+16]; setp.lt.u32 %p4, %r8, %r4; @%p4 bra FIRST;
mbarrier.arrive.shared.b64 _, [%r1]; add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 3;
@%p3 bra FIRST; bra END;
SECOND: and.b32 %r5, %r4, 1; {wait} add.u32 %r4, %r4, 1; {store}.shared.u32 [%r1+16], %r4;
setp.lt.u32 %p3, %r4, 3; @%p3 bra SECOND; END:
"""


def test_a_waiter_that_may_be_lapped():
    parts = {"wait": wait("%r1", "%r5", "W"), "load": "ld.acquire.cta", "store": "st.release.cta"}
    check(PACED.format(**parts), threads=64, smem=64)
    parts |= {"load": "ld.relaxed.cta", "store": "st.relaxed.cta"}
    found = faults(PACED.format(**parts), threads=64, smem=64)
    assert found
    assert all("may be lapped" in f.message for f in found)


def test_phases_that_parity_cannot_tell_apart():
    arrive, first = "mbarrier.arrive.shared.b64 _, [%r1];", "mov.u32 %r1, smem; "
    init = first + "setp.eq.u32 %p2, %r99, 0; @%p2 mbarrier.init.shared.b64 [%r1], 32; bar.sync 0;"
    check(init + arrive + wait("%r1", 0, "A") + arrive + wait("%r1", 1, "B"), smem=64)
    skipping = init + arrive + wait("%r1", 0, "A") + arrive + arrive + wait("%r1", 0, "B")
    (found,) = faults(skipping, smem=64)
    assert "2 phases between two waits" in found.message


def test_findings_before_a_deadlock_are_told_with_it():
    body = "mov.u32 %r1, smem; ld.shared.u32 %r2, [%r1+4]; bar.sync 1, 64;"
    with pytest.raises(DeadlockError, match="nobody has written"):
        faults(body, smem=64)
