"""Tensor memory: allocation, tcgen05.ld and st in every shape, lanes, columns."""

import numpy as np
import pytest

from fa4.emulator.errors import DeadlockError, TensorMemoryError
from fa4.emulator.program import Schedule
from tests.emulator.ptx_kernels import KINDS, run

ALLOC = """mov.u32 %r1, smem; shr.u32 %r90, %r99, 5; setp.eq.u32 %p20, %r90, 0;
@!%p20 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], {columns};
ALLOCATED: bar.sync 0; ld.shared.u32 %r2, [%r1]; shl.b32 %r91, %r90, 21; add.u32 %r3, %r2, %r91;
"""
FREE = """bar.sync 0; @!%p20 bra FREED;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, {columns};
FREED:
"""


def inside(body, *arrays, columns=64, threads=128, **options):
    text = ALLOC.replace("{columns}", str(columns)) + body + FREE.replace("{columns}", str(columns))
    return run(text, *arrays, threads=threads, smem=64, **options)


def registers(first, count):
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def fill(columns):
    """Each warp writes lane * 1000 + column into its lanes."""
    text = "and.b32 %r92, %r99, 127; mul.lo.u32 %r10, %r92, 1000;\n"
    for column in range(columns):
        text += f"add.u32 %r11, %r10, {column};\n"
        text += f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3+{column}], {{%r11}};\n"
    return text + "tcgen05.wait::st.sync.aligned; bar.sync 0;\n"


# Register r of thread l holds (lane, column), as in the PTX ISA's figures.
SHAPES = {
    "32x32b": (4, 4, lambda t, r: (t, r)),
    "16x64b": (4, 4, lambda t, r: (t // 4 + 8 * (t % 2), t // 2 % 2 + 2 * r)),
    "16x128b": (2, 4, lambda t, r: (t // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2))),
    "16x256b": (1, 4, lambda t, r: (t // 4 + 8 * (r // 2), r % 2 + 2 * (t % 4))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_load_shapes(shape, kind):
    repeat, count, place = SHAPES[shape]
    out = np.zeros((128, 4), np.uint32)
    body = fill(8) + f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {registers(20, count)}, [%r3];"
    body += "tcgen05.wait::ld.sync.aligned; mad.wide.u32 %d0, %r99, 16, %d50;"
    body += f"st.global.v4.b32 [%d0], {registers(20, 4)};"
    inside(body, out, schedule=Schedule(kind))
    for thread in range(128):
        for r in range(count):
            lane, column = place(thread % 32, r)
            assert out[thread, r] == (thread // 32 * 32 + lane) * 1000 + column


@pytest.mark.parametrize("shape", [s for s in SHAPES if s != "32x32b"])
def test_store_shapes_are_the_inverse(shape):
    repeat, count, place = SHAPES[shape]
    out = np.zeros((128, 8), np.uint32)
    values = "".join(f"mad.lo.u32 %r{20 + r}, %r99, 10, {r};" for r in range(count))
    body = fill(8) + values
    body += f"tcgen05.st.sync.aligned.{shape}.x{repeat}.b32 [%r3], {registers(20, count)};"
    body += "tcgen05.wait::st.sync.aligned;"
    body += f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {registers(30, 8)}, [%r3];"
    body += "tcgen05.wait::ld.sync.aligned; mad.wide.u32 %d0, %r99, 32, %d50;"
    body += f"st.global.v4.b32 [%d0], {registers(30, 4)};"
    body += f"st.global.v4.b32 [%d0+16], {registers(34, 4)};"
    inside(body, out)
    for thread in range(128):
        for r in range(count):
            lane, column = place(thread % 32, r)
            assert out[thread // 32 * 32 + lane, column] == thread * 10 + r


def test_pack_and_unpack_16_bits():
    out = np.zeros((128, 4), np.uint32)
    body = """add.u32 %r10, %r99, 0x00070000;
    tcgen05.st.sync.aligned.32x32b.x1.unpack::16b.b32 [%r3], {%r10};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r20, %r21}, [%r3];
    tcgen05.ld.sync.aligned.32x32b.x1.pack::16b.b32 {%r22}, [%r3]; tcgen05.wait::ld.sync.aligned;
    mov.u32 %r23, 0; mad.wide.u32 %d0, %r99, 16, %d50;
    st.global.v4.b32 [%d0], {%r20, %r21, %r22, %r23};"""
    inside(body, out)
    threads = np.arange(128)
    np.testing.assert_array_equal(out[:, 0], threads)
    np.testing.assert_array_equal(out[:, 1], 7)
    np.testing.assert_array_equal(out[:, 2], threads + 0x70000)


def test_another_warps_lanes():
    body = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r2];"
    with pytest.raises(TensorMemoryError, match=r"warp 1\) reaches lanes 32 to 63 only"):
        inside(body)


def test_columns_that_are_not_allocated():
    body = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r20, %r21}, [%r3+63];"
    with pytest.raises(TensorMemoryError, match=r"columns \[63, 65\).*allocated: \[0, 64\)"):
        inside(body)


@pytest.mark.parametrize("columns", [16, 48, 1024])
def test_allocation_size(columns):
    with pytest.raises(TensorMemoryError, match=f"of {columns} columns: must be a power of two"):
        inside("", columns=columns)


def test_not_freed_and_freed_twice():
    with pytest.raises(TensorMemoryError, match=r"ended with tensor memory allocated: columns \[0"):
        run(ALLOC.replace("{columns}", "32"), smem=64)
    with pytest.raises(TensorMemoryError, match="freed twice"):
        inside(
            "@!%p20 bra N; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64; N: bar.sync 0;"
        )


def test_no_allocation_after_relinquish():
    body = """@!%p20 bra N; tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32; N: bar.sync 0;"""
    with pytest.raises(TensorMemoryError, match="relinquish"):
        inside(body)


@pytest.mark.parametrize("kind", KINDS)
def test_allocation_waits_for_free_columns(kind):
    body = """setp.eq.u32 %p21, %r90, 1; @!%p21 bra GIVE;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+16], 512;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 512; bra DONE;
    GIVE: @!%p20 bra DONE; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32; DONE:"""
    run(ALLOC.replace("{columns}", "32") + body, smem=64, threads=64, schedule=Schedule(kind))
    with pytest.raises(DeadlockError, match="512 free columns of tensor memory"):
        run(
            ALLOC.replace("{columns}", "32") + body.replace("GIVE:", "GIVE: bra DONE;"),
            smem=64,
            threads=64,
            schedule=Schedule(kind),
        )


def test_memory_starts_as_nan():
    out = np.zeros(128, np.float32)
    body = """tcgen05.ld.sync.aligned.32x32b.x1.b32 {%f20}, [%r3]; tcgen05.wait::ld.sync.aligned;
    mad.wide.u32 %d0, %r99, 4, %d50; st.global.f32 [%d0], %f20;"""
    inside(body, out)
    assert np.isnan(out).all()


def test_a_store_is_late_until_its_wait():
    """Without tcgen05.wait::st a load may still see the old words."""
    out = np.zeros(128, np.float32)
    body = """mov.f32 %f1, 0f3F800000; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {%f1};
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%f20}, [%r3]; tcgen05.wait::ld.sync.aligned;
    mad.wide.u32 %d0, %r99, 4, %d50; st.global.f32 [%d0], %f20;"""
    inside(body, out, schedule=Schedule("late"))
    assert np.isnan(out).all()
    inside(body, out, schedule=Schedule("early"))
    assert (out == 1).all()
