"""Tiny kernels for the session's tests. They lie in a file because the DSL reads their source."""

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack

THREADS = 32


@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Constexpr):
    i = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    if i < cute.size(x):
        y[i] = x[i] * factor


# One name for every factor: kernels must not be told apart by their names.
scale_kernel.set_name_prefix("scale_kernel", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def double(x: cute.Tensor, y: cute.Tensor):
    grid = cute.ceil_div(cute.size(x), THREADS)
    scale_kernel(x, y, 2.0).launch(grid=[grid, 1, 1], block=[THREADS, 1, 1])


@cute.jit
def triple(x: cute.Tensor, y: cute.Tensor):
    grid = cute.ceil_div(cute.size(x), THREADS)
    scale_kernel(x, y, 3.0).launch(grid=[grid, 1, 1], block=[THREADS, 1, 1])


@cute.jit
def double_pointers(x: cute.Pointer, y: cute.Pointer, count: cutlass.Int32):
    layout = cute.make_layout((count,))
    grid = cute.ceil_div(count, THREADS)
    scale_kernel(cute.make_tensor(x, layout), cute.make_tensor(y, layout), 2.0).launch(
        grid=[grid, 1, 1], block=[THREADS, 1, 1]
    )


@cute.kernel
def many_parameters_kernel(
    flag: cutlass.Int8, bias: cutlass.Float32, x: cute.Tensor, shift: cutlass.Int64
):
    x[0] = bias + shift.to(cutlass.Float32) + flag.to(cutlass.Float32)


@cute.jit
def many_parameters(
    flag: cutlass.Int8, bias: cutlass.Float32, x: cute.Tensor, shift: cutlass.Int64
):
    many_parameters_kernel(flag, bias, x, shift).launch(
        grid=[2, 1, 1], block=[THREADS, 1, 1], cluster=[2, 1, 1]
    )


def compile_for(host, x, y, tvm_ffi):
    """Compile a host function of two tensors, for the default path or for TVM-FFI."""
    options = "--enable-tvm-ffi" if tvm_ffi else ""
    return cute.compile(host, from_dlpack(x), from_dlpack(y), options=options)


def call(compiled, x, y, tvm_ffi):
    """Call it the way of its path: CuTe tensors, or torch tensors."""
    if tvm_ffi:
        compiled(x, y)
    else:
        compiled(from_dlpack(x), from_dlpack(y))
