"""Loads, stores, atomics, address checks, cluster shared memory, bulk copies."""

import numpy as np
import pytest

from fa4.emulator.errors import AddressError, LaunchError
from fa4.emulator.memory import GlobalMemory
from fa4.emulator.program import Launch, Schedule
from tests.emulator.ptx_kernels import KINDS, aligned, run, wait

STORE = "mad.wide.u32 %d0, %r99, 4, %d50;\nst.global.u32 [%d0], {};\n"


def test_vectors_through_shared_and_global_memory():
    source = np.arange(512, dtype=np.uint32)
    out = np.zeros(512, np.uint32)
    body = """mad.wide.u32 %d0, %r99, 16, %d50; mad.wide.u32 %d1, %r99, 16, %d51;
    ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d0];
    mov.u32 %r10, smem; shl.b32 %r11, %r99, 4; add.u32 %r12, %r10, %r11; xor.b32 %r13, %r11, 16;
    add.u32 %r13, %r13, %r10;
    st.shared.v4.b32 [%r12], {%r4, %r3, %r2, %r1}; bar.sync 0;
    ld.shared.v2.b64 {%d2, %d3}, [%r13]; st.global.v2.b64 [%d1], {%d2, %d3};"""
    run(body, source, out, threads=128, smem=2048)
    expected = source.reshape(-1, 2, 4)[:, ::-1, ::-1].reshape(-1)
    np.testing.assert_array_equal(out, expected)


def test_narrow_loads_extend():
    source = np.array([-3] * 32, np.int8)
    out = np.zeros(32, np.int64)
    body = """cvt.u64.u32 %d0, %r99; add.u64 %d0, %d0, %d50; mad.wide.u32 %d1, %r99, 8, %d51;
    ld.global.s8 %d2, [%d0]; st.global.b64 [%d1], %d2;"""
    run(body, source, out)
    assert set(out.tolist()) == {-3}


def test_local_and_generic_addresses():
    out = np.zeros(64, np.uint32)
    body = """.local .align 16 .b8 stack[64];
    mov.b64 %d1, stack; cvta.local.u64 %d2, %d1; and.b32 %r1, %r99, 3; mul.wide.u32 %d3, %r1, 4;
    add.u64 %d4, %d2, %d3; add.u64 %d5, %d1, %d3;
    st.u32 [%d4], %r99; ld.local.u32 %r2, [%d5];
    mov.u32 %r10, smem; cvt.u64.u32 %d6, %r10; cvta.shared.u64 %d7, %d6; mul.wide.u32 %d8, %r99, 4;
    add.u64 %d9, %d7, %d8; st.u32 [%d9], %r2; bar.sync 0; cvta.to.shared.u64 %d10, %d9;
    cvt.u32.u64 %r11, %d10; ld.shared.u32 %r3, [%r11];""" + STORE.format("%r3")
    run(body, out, threads=64, smem=256)
    np.testing.assert_array_equal(out, np.arange(64))


ATOMS = {
    "add.u32": (1, 128),
    "max.u32": ("%r99", 127),
    "inc.u32": (9, 128 % 10),
    "or.b32": (6, 6),
    "exch.b32": (5, 5),
}


@pytest.mark.parametrize("operation", ATOMS)
def test_atomics(operation):
    value, expected = ATOMS[operation]
    out = np.zeros(1, np.uint32)
    run(f"atom.global.{operation} %r1, [%d50], {value};", out, threads=128)
    assert out[0] == expected


def test_compare_and_swap_and_float_reduction():
    out, total = np.zeros(1, np.uint32), np.zeros(1, np.float32)
    body = """add.u32 %r2, %r99, 1; atom.global.cas.b32 %r1, [%d50], %r99, %r2;
    red.global.add.f32 [%d51], 0f3F000000;"""
    run(body, out, total, threads=64)
    assert out[0] == 64
    assert total[0] == 32


def test_global_address_outside_every_range_names_the_nearest():
    out = np.zeros(32, np.uint32)
    with pytest.raises(AddressError) as error:
        run("add.u64 %d0, %d50, 128; st.global.u32 [%d0+8], 1;", out)
    message = str(error.value)
    assert "store of 4 bytes" in message
    assert "8 bytes behind 'p0'" in message
    assert "PTX line" in message


def test_misaligned_and_out_of_range_shared_addresses():
    with pytest.raises(AddressError, match="misaligned"):
        run("mov.u32 %r1, smem; ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1+8];", smem=64)
    with pytest.raises(AddressError, match="shared memory size"):
        run("mov.u32 %r1, smem; st.shared.u32 [%r1+64], 1;", smem=64)
    with pytest.raises(AddressError, match="4-byte aligned"):
        run("ld.global.u32 %r1, [%d50+2];", np.zeros(4, np.uint32))


def test_launch_errors():
    with pytest.raises(LaunchError, match="at most"):
        run("", smem=233000)
    with pytest.raises(LaunchError, match="multiple of cluster"):
        run("", ctas=3, cluster=2)
    with pytest.raises(LaunchError, match="compiled for 64"):
        run("", threads=96, directives=".reqntid 64, 1, 1")
    with pytest.raises(LaunchError, match="bytes of parameters"):
        run_with_parameters(b"1234")


def run_with_parameters(params):
    from fa4.emulator.program import Program
    from tests.emulator.ptx_kernels import module

    launch = Launch((1, 1, 1), (32, 1, 1), (1, 1, 1), 0, params)
    Program.from_ptx(module("", 1), "k").run(launch, GlobalMemory(), Schedule())


def test_ranges_merge_and_stay_named():
    memory = GlobalMemory()
    memory.add(0x10000, 0x100, "a")
    memory.add(0x10080, 0x100, "b")
    memory.check(0x10000, 0x180, "load")
    with pytest.raises(AddressError, match="'b'"):
        memory.check(0x10170, 0x20, "load")


@pytest.mark.parametrize("kind", KINDS)
def test_remote_shared_memory_and_cluster_barrier(kind):
    out = np.zeros(64, np.uint32)
    body = """mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; mov.u32 %r3, smem;
    mapa.shared::cluster.u32 %r4, %r3, %r2; shl.b32 %r5, %r99, 2; add.u32 %r4, %r4, %r5;
    mad.lo.u32 %r6, %r1, 100, %r99; st.shared::cluster.u32 [%r4], %r6;
    barrier.cluster.arrive; barrier.cluster.wait;
    add.u32 %r7, %r3, %r5; ld.shared.u32 %r8, [%r7]; mad.lo.u32 %r9, %r1, 32, %r99;
    mad.wide.u32 %d0, %r9, 4, %d50; st.global.u32 [%d0], %r8;"""
    run(body, out, ctas=2, cluster=2, smem=256, schedule=Schedule(kind))
    np.testing.assert_array_equal(out, np.concatenate((100 + np.arange(32), np.arange(32))))


@pytest.mark.parametrize("kind", KINDS)
def test_bulk_copy_in_and_out(kind):
    source, out = aligned(256), aligned(256)
    source[:] = np.arange(256)
    body = (
        """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; @!%p1 bra JOIN;
    mbarrier.init.shared.b64 [%r1], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+128], [%d50], 256, [%r1];
    JOIN: bar.sync 0;"""
        + wait("%r1", 0, "W")
        + """@!%p1 bra END;
    cp.async.bulk.global.shared::cta.bulk_group [%d51], [%r1+128], 256;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"""
    )
    run(body, source, out, threads=64, smem=1024, schedule=Schedule(kind))
    np.testing.assert_array_equal(out, source)


def test_bulk_reduction_adds():
    total = aligned(64)
    total.view(np.float32)[:] = 1
    body = """mov.u32 %r1, smem; shl.b32 %r2, %r99, 2; add.u32 %r2, %r2, %r1;
    cvt.rn.f32.u32 %f1, %r99; st.shared.f32 [%r2], %f1; setp.eq.u32 %p1, %r99, 0; bar.sync 0;
    @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d50], [%r1], 64;"""
    run(body, total, smem=256)
    np.testing.assert_array_equal(total.view(np.float32), 1 + np.arange(16))


@pytest.mark.parametrize("kind", KINDS)
def test_one_lane_waits_for_its_bulk_copy_and_meets_the_others_at_a_barrier(kind):
    out = np.zeros(16, np.float32)
    body = """mov.u32 %r1, smem; mad.lo.u32 %r2, %r99, 4, %r1; mov.f32 %f1, 0f3F800000;
    setp.lt.u32 %p1, %r99, 16; @%p1 st.shared.f32 [%r2], %f1; bar.warp.sync -1;
    setp.ne.u32 %p2, %r99, 0; @%p2 bra JOIN;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d50], [%r1], 64;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
    JOIN: bar.warp.sync -1;"""
    run(body, out, smem=128, schedule=Schedule(kind, 1))
    assert np.all(out == 1.0)


def test_bulk_copy_must_be_a_multiple_of_16():
    body = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0;
    @%p1 cp.async.bulk.global.shared::cta.bulk_group [%d50], [%r1], 24;"""
    with pytest.raises(AddressError, match="multiples of 16"):
        run(body, aligned(64), smem=256)


@pytest.mark.parametrize("kind", KINDS)
def test_cp_async_with_zero_fill_and_groups(kind):
    source = aligned(512)
    source[:] = np.arange(512) % 251
    out = np.zeros(128, np.uint32)
    body = """mov.u32 %r1, smem; shl.b32 %r2, %r99, 4; add.u32 %r3, %r1, %r2;
    mad.wide.u32 %d1, %r99, 16, %d51; setp.lt.u32 %p1, %r99, 30; selp.b32 %r4, 16, 4, %p1;
    cp.async.cg.shared.global [%r3], [%d1], 16, %r4; cp.async.commit_group;
    cp.async.wait_group 0; ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r3];
    mad.wide.u32 %d2, %r99, 16, %d50; st.global.v4.b32 [%d2], {%r5, %r6, %r7, %r8};"""
    run(body, out, source, smem=1024, schedule=Schedule(kind))
    expected = source.view(np.uint32).copy().reshape(-1, 4)
    expected[30:, 1:] = 0
    np.testing.assert_array_equal(out.reshape(-1, 4), expected)


@pytest.mark.parametrize("kind", ["late", "priority"])
def test_a_missing_wait_for_cp_async_is_seen(kind):
    source, out = aligned(512), np.zeros(32, np.uint32)
    body = """mov.u32 %r1, smem; shl.b32 %r2, %r99, 4; add.u32 %r3, %r1, %r2;
    mad.wide.u32 %d1, %r99, 16, %d51; cp.async.cg.shared.global [%r3], [%d1], 16;
    cp.async.commit_group; ld.shared.b32 %r5, [%r3];""" + STORE.format("%r5")
    seen = set()
    for seed in range(8):
        run(body, out, source, smem=1024, schedule=Schedule(kind, seed))
        seen |= set(out.tolist())
    assert 0xFFFFFFFF in seen


def test_st_async_counts_its_bytes():
    out = np.zeros(4, np.uint32)
    body = (
        """mov.u32 %r1, smem; mov.u32 %r20, %cluster_ctarank; setp.eq.u32 %p1, %r99, 0;
    @!%p1 bra A; mbarrier.init.shared.b64 [%r1], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;
    A: barrier.cluster.arrive; barrier.cluster.wait;
    xor.b32 %r2, %r20, 1; mapa.shared::cluster.u32 %r3, %r1, %r2; add.u32 %r4, %r3, 64;
    add.u32 %r5, %r20, 40;
    @%p1 st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%r4],
      {%r5, %r5, %r5, %r5}, [%r3];"""
        + wait("%r1", 0, "W")
        + """
    ld.shared.u32 %r6, [%r1+68]; mad.wide.u32 %d0, %r20, 4, %d50;
    @%p1 st.global.u32 [%d0], %r6;"""
    )
    run(body, out, ctas=2, cluster=2, smem=256)
    assert out[:2].tolist() == [41, 40]


@pytest.mark.parametrize("access", ["st.shared::cluster.u32 [%r4], 1;", "mbarrier"])
def test_shared_memory_of_a_cta_that_has_ended(access):
    """CTA 1 is the last at the barrier and exits at once; CTA 0 reaches for it afterwards."""
    if access == "mbarrier":
        access = "mbarrier.arrive.shared::cluster.b64 _, [%r4];"
    body = f"""mov.u32 %r1, %cluster_ctarank; mov.u32 %r3, smem; mbarrier.init.shared.b64 [%r3], 1;
    barrier.cluster.arrive; barrier.cluster.wait; setp.eq.u32 %p1, %r1, 1; @%p1 bra END;
    mapa.shared::cluster.u32 %r4, %r3, 1; {access} END:"""
    with pytest.raises(AddressError, match="CTA 1 of the cluster has ended"):
        run(body, threads=1, ctas=2, cluster=2, smem=256)


def test_cluster_launch_control_hands_out_the_rest_of_the_grid():
    out = np.zeros(8, np.uint32)
    body = (
        """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; mov.u32 %r10, %ctaid.x; mov.u32 %r11, 0;
    @!%p1 bra LOOP; mbarrier.init.shared.b64 [%r1], 1;
    LOOP: bar.sync 0; mad.wide.u32 %d0, %r10, 4, %d50; @%p1 st.global.u32 [%d0], 7;
    @!%p1 bra W; mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128
      [%r1+16], [%r1];"""
        + wait("%r1", "%r11", "W")
        + """xor.b32 %r11, %r11, 1;
    ld.shared.v2.b64 {%d1, %d2}, [%r1+16]; mov.b128 %q1, {%d1, %d2};
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q1; @!%p2 bra END;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r10, %q1; bra LOOP; END:"""
    )
    stats = run(body, out, ctas=8, smem=256)
    assert out.tolist() == [7] * 8
    assert stats.by_role.keys() == {"warp 0"}
