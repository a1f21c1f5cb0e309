"""Tiny kernels that show what ptxas reports. In a file because the DSL reads their source."""

import os
import tempfile

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.runtime import make_ptr

LIVE = 128  # values live at once: more than the 64 registers that each of 1024 threads can have


@cute.kernel
def load_use_kernel(x: cute.Tensor, y: cute.Tensor, count: cutlass.Constexpr):
    """Loads `count` values, and uses them only after a barrier: all are live there."""
    thread = cute.arch.thread_idx()[0]
    values = cute.make_rmem_tensor(count, Float32)
    for i in cutlass.range(count, unroll_full=True):
        values[i] = x[thread, i]
    y[thread, 0] = Float32(0.0)
    cute.arch.sync_threads()
    for i in cutlass.range(count, unroll_full=True):
        y[thread, i] = values[i] * values[(i + 1) % count]


@cute.kernel
def warpgroups_kernel(y: cute.Tensor):
    """Two warpgroups that ask for different register budgets."""
    thread = cute.arch.thread_idx()[0]
    if thread < 128:
        cute.arch.setmaxregister_increase(160)
        y[thread, 0] = Float32(1.0)
    else:
        cute.arch.setmaxregister_decrease(40)
        y[thread, 0] = Float32(2.0)


def _tensor(pointer, columns):
    return cute.make_tensor(pointer, cute.make_layout((1024, columns), stride=(columns, 1)))


@cute.jit
def relaxed(x: cute.Pointer, y: cute.Pointer):
    load_use_kernel(_tensor(x, 4), _tensor(y, 4), 4).launch(grid=[1, 1, 1], block=[128, 1, 1])


@cute.jit
def spilling(x: cute.Pointer, y: cute.Pointer):
    load_use_kernel(_tensor(x, LIVE), _tensor(y, LIVE), LIVE).launch(
        grid=[1, 1, 1], block=[1024, 1, 1]
    )


@cute.jit
def budgets_ignored(x: cute.Pointer, y: cute.Pointer):
    warpgroups_kernel(_tensor(y, 1)).launch(grid=[1, 1, 1], block=[256, 1, 1])


@cute.jit
def budgets_honoured(x: cute.Pointer, y: cute.Pointer):
    warpgroups_kernel(_tensor(y, 1)).launch(grid=[1, 1, 1], block=[256, 1, 1], min_blocks_per_mp=1)


def compiled(host):
    """(PTX, cubin) of one of the host functions above, for sm_100a."""
    pointer = make_ptr(Float32, 0, cute.AddressSpace.gmem, assumed_align=16)
    with tempfile.TemporaryDirectory() as folder:
        options = f"--keep-ptx --keep-cubin --dump-dir={folder} --gpu-arch=sm_100a"
        function = cute.compile(host, pointer, pointer, options=options)
        assert os.listdir(folder)
        return function.__ptx__, function.__cubin__
