"""TMA: descriptors as the CuTe DSL encodes them, swizzle, edges, stores, reductions, multicast."""

import numpy as np
import pytest

from fa4.emulator.errors import AddressError, DescriptorError
from fa4.emulator.program import RunStats, Schedule
from fa4.emulator.tma_descriptor import decode
from tests.emulator.ptx_kernels import KINDS, aligned, run, tensor_map, wait

U16, F32, BF16 = 1, 7, 10
LOAD = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; add.u32 %r2, %r1, 1024;
@!%p1 bra JOIN; mbarrier.init.shared.b64 [%r1], 1;
mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {nbytes};
cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r2],
  [%d50, {{{corner}}}], [%r1];
JOIN: bar.sync 0;""" + wait("%r1", 0, "W")
DUMP = """mad.lo.u32 %r3, %r99, 16, %r2; mad.wide.u32 %d1, %r99, 16, %d51; mov.u32 %r4, 0;
D: ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r3]; st.global.v4.b32 [%d1], {%r5, %r6, %r7, %r8};
add.u32 %r3, %r3, 512; add.u64 %d1, %d1, 512; add.u32 %r4, %r4, 512;
setp.lt.u32 %p2, %r4, %r40; @%p2 bra D;
"""


def source(rows, columns):
    array = aligned(rows * columns * 2).view(np.uint16).reshape(rows, columns)
    array[...] = np.arange(rows * columns, dtype=np.uint32).reshape(rows, columns) % 65521
    return array


def load(array, box, corner, swizzle=0, kind="early"):
    """Loads one 2D box of uint16 and returns the bytes that shared memory then holds."""
    rows, columns = array.shape
    nbytes = box[0] * box[1] * 2
    descriptor = tensor_map(array, U16, (columns, rows), (columns * 2,), box, swizzle)
    out = np.zeros(max(nbytes, 512), np.uint8)
    body = LOAD.format(nbytes=nbytes, rank=2, corner=f"{corner[0]}, {corner[1]}")
    body += f"mov.u32 %r40, {nbytes};" + DUMP
    run(body, descriptor, out, array, smem=1024 + 16384, schedule=Schedule(kind))
    return out[:nbytes].view(np.uint16)


@pytest.mark.parametrize("kind", KINDS)
def test_box_in_the_middle(kind):
    array = source(64, 128)
    got = load(array, (32, 16), (24, 10), kind=kind).reshape(16, 32)
    np.testing.assert_array_equal(got, array[10:26, 24:56])


@pytest.mark.parametrize("corner", [(120, 60), (-8, -5), (0, 64), (-40, 0)])
def test_outside_of_the_tensor_is_zero(corner):
    array = source(64, 128) + np.uint16(1)
    array = np.array(array, copy=True)
    store = aligned(array.nbytes).view(np.uint16).reshape(array.shape)
    store[...] = array
    got = load(store, (32, 16), corner).reshape(16, 32)
    expected = np.zeros((16, 32), np.uint16)
    for i in range(16):
        for j in range(32):
            row, column = corner[1] + i, corner[0] + j
            if 0 <= row < 64 and 0 <= column < 128:
                expected[i, j] = store[row, column]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("swizzle", "columns"), [(1, 16), (2, 32), (3, 64)])
def test_swizzle_is_an_exclusive_or_of_address_bits(swizzle, columns):
    array = source(64, 128)
    got = load(array, (columns, 32), (0, 0), swizzle).tobytes()
    plain = np.ascontiguousarray(array[:32, :columns]).tobytes()
    for unit in range(len(plain) // 16):
        place = unit ^ (unit >> 3 & (1 << swizzle) - 1)
        assert got[16 * place : 16 * place + 16] == plain[16 * unit : 16 * unit + 16]


def test_store_clips_and_reduction_adds():
    target = aligned(32 * 32 * 4).view(np.float32).reshape(32, 32)
    target[...] = 1
    descriptor = tensor_map(target, F32, (32, 32), (128,), (8, 4))
    body = """mov.u32 %r1, smem; mad.lo.u32 %r2, %r99, 4, %r1; cvt.rn.f32.u32 %f1, %r99;
    st.shared.f32 [%r2], %f1; setp.eq.u32 %p1, %r99, 0; bar.sync 0; @!%p1 bra END;
    cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%d50, {4, 30}], [%r1];
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d50, {28, 0}], [%r1];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; END:"""
    run(body, descriptor, target, smem=1024)
    box = np.arange(32, dtype=np.float32).reshape(4, 8)
    expected = np.ones((32, 32), np.float32)
    expected[30:, 4:12] += box[:2]
    expected[:4, 28:] = box[:, :4]
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_multicast_signals_every_cta(kind):
    array = source(8, 32)
    descriptor = tensor_map(array, U16, (32, 8), (64,), (32, 8))
    out = np.zeros((2, 256), np.uint16)
    body = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r99, 0; mov.u32 %r20, %cluster_ctarank;
    add.u32 %r2, %r1, 1024; @!%p1 bra JOIN; mbarrier.init.shared.b64 [%r1], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 512;
    JOIN: barrier.cluster.arrive; barrier.cluster.wait; setp.eq.u32 %p3, %r20, 0; mov.b16 %h1, 3;
    and.pred %p4, %p1, %p3;
    @%p4 cp.async.bulk.tensor.2d.shared::cluster.global.tile"""
    body += (
        """.mbarrier::complete_tx::bytes.multicast::cluster [%r2], [%d50, {0, 0}], [%r1], %h1;"""
        + wait("%r1", 0, "W")
    )
    body += "mad.wide.u32 %d51, %r20, 512, %d51; mov.u32 %r40, 512;" + DUMP
    run(body, descriptor, out, array, ctas=2, cluster=2, smem=2048, schedule=Schedule(kind))
    np.testing.assert_array_equal(out.reshape(2, 8, 32), [array, array])


def attempt(descriptor, array, offset=0, rank=2):
    body = LOAD.format(nbytes=4096, rank=rank, corner=", ".join("0" * rank))
    body = body.replace("%r1, 1024", f"%r1, {1024 + offset}")
    run(body, descriptor, np.zeros(1, np.uint8), array, smem=16384)


def test_descriptor_and_address_errors():
    array = source(64, 128)
    good = tensor_map(array, U16, (128, 64), (256,), (64, 32), 3)
    attempt(good, array)
    with pytest.raises(AddressError, match="128-byte aligned"):
        attempt(good, array, offset=64)
    with pytest.raises(AddressError, match="1024-byte atom of its 128-byte swizzle"):
        attempt(good, array, offset=128)
    with pytest.raises(DescriptorError, match="3 coordinates"):
        attempt(good, array, rank=3)
    with pytest.raises(DescriptorError, match="element type 15"):
        attempt(tensor_map(array, 15, (128, 64), (256,), (64, 32)), array)
    with pytest.raises(DescriptorError, match="exceeds the 32-byte swizzle"):
        attempt(tensor_map(array, U16, (128, 64), (256,), (64, 32), 1), array)
    bad = aligned(128)
    bad[:] = good
    bad[8] ^= 1
    with pytest.raises(DescriptorError, match="im2col"):
        attempt(bad, array)
    with pytest.raises(AddressError, match="TMA box"):
        attempt(tensor_map(array, U16, (128, 640), (256,), (64, 32)), array[:8].copy())
    with pytest.raises(DescriptorError, match="64-byte aligned"):
        attempt(good[16:], array)


def test_a_box_outside_shared_memory():
    array = source(64, 128)
    with pytest.raises(AddressError, match="outside the CTA's memory"):
        attempt(tensor_map(array, U16, (128, 64), (256,), (64, 32)), array, offset=12288)


SWEEP = [
    ("float16", (256, 512), 0, (16, 64)),
    ("float16", (256, 512), 1, (16, 16)),
    ("float16", (256, 512), 2, (16, 32)),
    ("float16", (256, 512), 3, (16, 64)),
    ("bfloat16", (256, 512), 3, (16, 64)),
    ("float32", (256, 512), 3, (16, 32)),
    ("int32", (256, 512), 3, (16, 32)),
    ("uint8", (256, 512), 3, (16, 128)),
    ("int64", (256, 512), 3, (16, 16)),
    ("float8_e4m3fn", (256, 512), 3, (16, 128)),
    ("float16", (4, 256, 512), 3, (1, 16, 64)),
    ("float16", (3, 5, 7, 256, 512), 3, (3, 2, 1, 16, 64)),
]


@pytest.mark.parametrize(("dtype", "shape", "swizzle", "box"), SWEEP)
def test_descriptors_of_the_dsl(dtype, shape, swizzle, box, monkeypatch):
    """The host code of the CuTe DSL writes the descriptor; `decode` must find what it was given."""
    import torch

    from fa4.emulator import session
    from fa4.emulator.program import Program
    from tests.emulator import tma_descriptor_kernel

    captured = []

    def capture(_program, launch, *_args, **_options):
        captured.append(launch)
        return RunStats()

    monkeypatch.setattr(Program, "run", capture)
    size = getattr(torch, dtype).itemsize
    nbytes = int(np.prod(shape)) * size
    store = torch.from_numpy(aligned(nbytes))
    tensor = store.view(getattr(torch, dtype)).view(shape)
    with session():
        tma_descriptor_kernel.launch(tensor, swizzle, box)
    found = decode(captured[0].params[:64])
    assert found.address == tensor.data_ptr()
    assert found.element_bytes == size
    assert found.swizzle == swizzle
    # The DSL may order the outer dimensions as it likes.
    given = zip(shape[::-1], [s * size for s in tensor.stride()[::-1]], box[::-1], strict=True)
    assert sorted(zip(found.dims, found.strides, found.box, strict=True)) == sorted(given)
    assert (found.dims[0], found.box[0]) == (shape[-1], box[-1])
