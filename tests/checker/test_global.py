"""Global memory: stores of warps, engines and clusters that nothing orders."""

import numpy as np
import pytest

from fa4.emulator.errors import AddressError
from tests.checker.faults import check, faults
from tests.emulator.ptx_kernels import aligned

# Both CTAs store to the same word; CTA 1 first waits for a flag that CTA 0 sets.
HANDED_OVER = """mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r99, 0;
mov.u32 %r4, 1; @!%p2 bra END; @!%p1 bra SECOND;
st.global.u32 [%d50], %r1; {store}.global.u32 [%d51], %r4; bra END;
SECOND: {load}.global.u32 %r5, [%d51]; setp.eq.u32 %p3, %r5, 0; @%p3 bra SECOND;
{after} st.global.u32 [%d50], %r1; END:
"""
ACQUIRE, RELEASE = "ld.acquire.gpu", "st.release.gpu"


@pytest.mark.parametrize(
    ("store", "load", "after", "clean"),
    [
        (RELEASE, ACQUIRE, "", True),
        ("st.relaxed.gpu", ACQUIRE, "", False),
        (RELEASE, "ld.relaxed.gpu", "", False),
        ("fence.acq_rel.gpu; st.relaxed.gpu", "ld.relaxed.gpu", "fence.acq_rel.gpu;", True),
    ],
)
def test_clusters_are_ordered_by_release_and_acquire(store, load, after, clean):
    body = HANDED_OVER.format(store=store, load=load, after=after)
    found = faults(body, np.zeros(1, np.uint32), np.zeros(64, np.uint32), ctas=2)
    assert (not found) == clean
    for finding in found:
        assert (finding.first.cta, finding.second.cta) == ((0, 0, 0), (1, 0, 0))
        assert "a release by the first CTA" in finding.missing


def test_atomics_of_several_clusters_do_not_race():
    count, flag = np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    check("red.global.add.u32 [%d50], 1;", count, flag, ctas=3)
    assert count[0] == 96
    plain = "red.global.add.u32 [%d50], 1; st.global.u32 [%d50], %r99;"
    assert faults(plain, count, flag, ctas=2)


def test_words_that_every_cluster_has_for_itself():
    body = """mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 32, %r99; mul.wide.u32 %d1, %r2, 4;
    add.u64 %d1, %d1, %d50; st.global.u32 [%d1], %r2; ld.global.u32 %r3, [%d1];"""
    check(body, np.zeros(96, np.uint32), ctas=3)


def test_reads_before_the_first_write_of_a_range_count():
    body = """setp.eq.u32 %p1, %r99, 32; ld.global.u32 %r1, [%d50]; {order}
    @%p1 st.global.u32 [%d50], %r1;"""
    check(body.format(order="bar.sync 0;"), np.zeros(1, np.uint32), threads=64)
    (found,) = faults(body.format(order=""), np.zeros(1, np.uint32), threads=64)
    assert "overwritten" in found.message


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("access", ["st.{}.u32 [{}], %r99;", "ld.{}.u32 %r2, [{}];"])
def test_what_lies_out_of_bounds_is_an_error_as_without_the_checker(space, access):
    """Behind a range that has been written, so that the checker knows it."""
    body = """mov.u32 %r1, smem; st.shared.u32 [%r1], %r99; st.global.u32 [%d50], %r99;
    mov.u64 %d1, 0x123456789000; add.u64 %d1, %d1, %d50; mov.u32 %r3, 0xabcd00;"""
    place = {"global": "%d1", "shared": "%r3"}[space]
    with pytest.raises(AddressError):
        check(body + access.format(space, place), np.zeros(1, np.uint32), threads=1, smem=256)


STORES = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; mad.lo.u32 %r2, %r99, 4, %r1;
st.shared.u32 [%r2], %r99; fence.proxy.async.shared::cta; bar.sync 0; @!%p1 bra REST;
cp.async.bulk.global.shared::cta.bulk_group [%d50], [%r1], 128;
cp.async.bulk.commit_group; {wait}
cp.async.bulk.global.shared::cta.bulk_group [%d50], [%r1], 128;
cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
REST:
"""


def test_two_bulk_stores_to_one_place():
    check(STORES.format(wait="cp.async.bulk.wait_group 0;"), aligned(128), smem=256)
    (found,) = faults(
        STORES.format(wait="cp.async.bulk.wait_group.read 0;"), aligned(128), smem=256
    )
    assert "without .read" in found.missing


def test_lanes_that_issue_the_same_store_are_a_remark():
    body = """mov.u32 %r1, smem; mad.lo.u32 %r2, %r99, 4, %r1; st.shared.u32 [%r2], %r99;
    fence.proxy.async.shared::cta; bar.sync 0;
    cp.async.bulk.global.shared::cta.bulk_group [%d50], [%r1], 128;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"""
    (remark,) = check(body, aligned(128), smem=256).remarks
    assert "several lanes of a warp" in remark
