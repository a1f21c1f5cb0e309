"""What the modes do to a kernel, seen from inside: %fa4_sm and %fa4_nap are its registers too."""

from dataclasses import replace

import numpy as np
import pytest

from fa4.on_hopper import workspace as ws
from fa4.on_hopper.modes import Modes
from fa4.on_hopper.rewrite import rewrite
from tests.emulator.test_mma import A_PLACE, descriptor, instruction, mma
from tests.on_hopper import kernels
from tests.on_hopper.kernels import kernel, run

NAN = 0xFFFFFFFF
STORE = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r3+4], {%r99, %r90};"
LOOK = f"""mad.wide.u32 %d1, %r99, 4, %fa4_sm; ld.global.b32 %r6, [%d1+{4 * ws.COLUMN}];
mad.wide.u32 %d0, %r99, 4, %d50; st.global.b32 [%d0], %r6;"""


def looked(body, **modes):
    out = np.zeros(128, np.uint32)
    run(body + LOOK, out, modes=Modes(poison=True, **modes))
    return out


def test_lazy_stores_land_at_the_wait():
    waited = STORE + "tcgen05.wait::st.sync.aligned;"
    np.testing.assert_array_equal(looked(STORE), np.arange(128))
    np.testing.assert_array_equal(looked(waited, lazy=True), np.arange(128))
    assert (looked(STORE, lazy=True) == NAN).all()


def test_lazy_stores_land_in_order_and_never_get_lost():
    """More than a thread can hold back: the oldest land early, the last one wins."""
    many = "add.u32 %r5, %r99, 1;" + 200 * STORE.replace("%r99", "%r5") + STORE
    many += "tcgen05.wait::st.sync.aligned;"
    np.testing.assert_array_equal(looked(many, lazy=True), np.arange(128))


@pytest.mark.parametrize(("defer", "published"), [(False, [1, 2]), (True, [0, 2])])
def test_deferred_mmas_start_at_their_commit(defer, published):
    place = descriptor(A_PLACE, 16, 1024, 3)
    look = f"ld.global.u32 %r6, [%fa4_sm+{ws.PUBLISHED}]; st.global.u32 [%d50+%s], %r6;"
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];"
    issue = mma("f16", place, place, instruction(128, 16)) + look.replace("%s", "0")
    out = np.zeros(2, np.uint32)
    body = f"@!%p1 bra ISSUED; {issue} {commit} {look.replace('%s', '4')} ISSUED:"
    run(body, out, modes=Modes(defer=defer), smem=65536)
    assert out.tolist() == published


def test_poison_fills_shared_memory_behind_what_the_kernel_wrote():
    out = np.zeros(128, np.uint32)
    body = """mad.lo.u32 %r4, %r99, 8, %r1; ld.shared.b32 %r6, [%r4+64];
    mad.wide.u32 %d0, %r99, 4, %d50; st.global.b32 [%d0], %r6;"""
    run(body, out, modes=Modes(poison=True), smem=64 + 8 * 128)
    assert (out == NAN).all()


def naps(seed, modes):
    """The longest nap of each of the kernel's four warps."""
    out = np.zeros(128, np.uint32)
    body = "mad.wide.u32 %d0, %r99, 4, %d50; st.global.b32 [%d0], %fa4_nap;"
    run(body, out, modes=modes, seed=seed)
    warps = out.reshape(4, 32)
    assert (warps == warps[:, :1]).all()
    return tuple(int(nap) for nap in warps[:, 0])


def test_seeds_choose_the_slow_warps():
    modes = Modes(skew=10.0)
    assert modes.nap == 10000
    chosen = {seed: naps(seed, modes) for seed in range(12)}
    assert set().union(*chosen.values()) == {0, modes.nap}
    assert len(set(chosen.values())) > 3
    assert naps(5, modes) == chosen[5]


def test_naps_stand_before_synchronisation_only_in_skew():
    ptx = kernel("bar.warp.sync -1;")
    assert "nanosleep.u32 fa4_n" not in rewrite(ptx, "k", Modes()).ptx
    text = rewrite(ptx, "k", Modes(skew=1.0)).ptx
    # alloc's barrier, ours, the last one; and the tensor core's
    assert text.count("nanosleep.u32 fa4_n") == 4


def test_naps_are_random_and_shorter_than_asked(monkeypatch):
    """The sleep is replaced by a look at its length; the longest of each thread is stored."""

    def looking(*arguments):
        made = rewrite(*arguments)
        look = made.ptx.replace("nanosleep.u32 fa4_n;", "max.u32 %r6, %r6, fa4_n;")
        return replace(made, ptx=look)

    monkeypatch.setattr(kernels, "rewrite", looking)
    out = np.zeros(128, np.uint32)
    body = "mov.u32 %r6, 0;" + 300 * "bar.warp.sync -1;"
    body += "mad.wide.u32 %d0, %r99, 4, %d50; st.global.b32 [%d0], %r6;"
    longest = []
    for seed in range(6):
        run(body, out, modes=Modes(skew=600.0), seed=seed)
        longest += [nap for nap in out if nap]
    assert 500_000 < min(longest) <= max(longest) < 600_000


@pytest.mark.parametrize("skew", [-1.0, 0.0001, 1000.1, float("nan")])
def test_naps_that_the_hardware_does_not_sleep_are_refused(skew):
    allowed = "0 .off. and microseconds from 0.01 to 1000 are allowed"
    with pytest.raises(ValueError, match=f"skew={skew}: {allowed}"):
        Modes(skew=skew)
