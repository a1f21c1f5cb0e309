"""Grids that may begin before the one before has ended, and what a session hands on to them."""

import ctypes

import numpy as np
import pytest

from fa4.emulator.cuda_runtime import Kernel, RawLaunch
from fa4.emulator.errors import AddressError
from fa4.emulator.sessions import Session
from tests.checker.faults import check, faults
from tests.emulator.ptx_kernels import aligned, module

READ, WRITE = "ld.global.u32 %r1, [%d50];", "st.global.u32 [%d50], %r99;"
READ_NEXT, WRITE_NEXT = "ld.global.u32 %r1, [%d50+4];", "st.global.u32 [%d50+4], %r99;"
BULK_WRITE = """mov.u32 %r1, smem; st.shared.v4.u32 [%r1], {%r99, %r99, %r99, %r99};
fence.proxy.async.shared::cta; cp.async.bulk.global.shared::cta.bulk_group [%d50], [%r1], 16;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"""
WAIT = "griddepcontrol.wait;"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (WRITE, READ, "is read while a write"),
        (WRITE, WRITE, "is written while another write"),
        (READ, WRITE, "is overwritten while a read"),
        (READ, BULK_WRITE, "is overwritten while a read"),
        (WRITE + READ_NEXT, WRITE_NEXT, "is overwritten while a read"),
        (WRITE + READ_NEXT, READ_NEXT, ""),
        (READ, READ + WRITE_NEXT, ""),
    ],
)
def test_what_the_grid_before_touched_is_in_order_behind_a_wait_only(before, after, words):
    array, options = aligned(128), {"threads": 1, "smem": 256}
    first = check(before, array, **options)
    check(WAIT + after, array, unordered=first.touched, **options)
    check(after, array, **options)
    found = faults(after, array, unordered=first.touched, **options)
    assert len(found) == bool(words)
    for finding in found:
        assert words in finding.message
        assert finding.message.endswith("by the grid before")


@pytest.mark.parametrize(("before", "after"), [(WRITE, READ), (READ, WRITE)])
def test_a_grid_that_never_waits_hands_on_what_the_one_before_it_touched(before, after):
    array = np.zeros(2, np.uint32)
    first = check(before, array)
    for middle, clean in (("", False), (WAIT, True)):
        second = check(middle, unordered=first.touched)
        assert (not faults(after, array, unordered=second.touched)) == clean


HANDED_OVER = """mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; mov.u32 %r4, 1; @!%p1 bra SECOND;
{first}.global.u32 [%d51], %r4; bra END;
SECOND: {load}.global.u32 %r5, [%d51]; setp.eq.u32 %p3, %r5, 0; @%p3 bra SECOND;
{behind} ld.global.u32 %r6, [%d50]; END:
"""
FENCE, RELEASE, RELAXED = "fence.acq_rel.gpu;", "st.release.gpu", "st.relaxed.gpu"


@pytest.mark.parametrize(
    ("first", "load", "behind", "clean"),
    [
        (WAIT + RELEASE, "ld.acquire.gpu", "", True),
        (WAIT + FENCE + RELAXED, "ld.relaxed.gpu", FENCE, True),
        (RELEASE, "ld.acquire.gpu", "", False),
        (WAIT + RELAXED, "ld.acquire.gpu", "", False),
        (FENCE + WAIT + RELAXED, "ld.acquire.gpu", "", False),
        (WAIT + RELEASE, "ld.relaxed.gpu", "", False),
    ],
)
def test_a_cluster_may_wait_for_others(first, load, behind, clean):
    word, flag = np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    touched = check(WRITE, word).touched
    body = HANDED_OVER.format(first=first, load=load, behind=behind)
    assert (not faults(body, word, flag, ctas=2, unordered=touched)) == clean


def launch(session: Session, body: str, array: np.ndarray, stream: int, dependent: bool) -> list:
    """One launch in a session as the hook makes it; its findings."""
    pointer = ctypes.c_void_p(array.ctypes.data)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
    kernel, one = Kernel("k", module(body, 1)), (1, 1, 1)
    place = ctypes.addressof(arguments)
    raw = RawLaunch(kernel, one, (32, 1, 1), one, 0, place, stream, dependent)
    session.launch(raw, [(array.ctypes.data, array.nbytes)])
    return session.launches[-1].stats.findings


def test_only_a_dependent_launch_into_the_same_stream_follows():
    session, array = Session(check=True), np.zeros(1, np.uint32)
    for stream, dependent, clean in ((7, True, False), (7, False, True), (8, True, True)):
        launch(session, WRITE, array, 7, False)
        assert (not launch(session, READ, array, stream, dependent)) == clean


def test_nothing_is_handed_on_past_a_launch_that_raised():
    session, array = Session(check=True), np.zeros(1, np.uint32)
    launch(session, WRITE, array, 0, False)
    with pytest.raises(AddressError):
        launch(session, "mov.u64 %d1, 64; ld.global.u32 %r1, [%d1];", array, 0, False)
    assert not launch(session, READ, array, 0, True)


def test_nothing_is_handed_on_to_the_session_opened_again():
    session, array = Session(check=True), np.zeros(1, np.uint32)
    with session:
        launch(session, WRITE, array, 0, False)
    with session:
        assert not launch(session, READ, array, 0, True)
