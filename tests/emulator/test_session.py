"""Sessions: whatever the DSL compiled runs in the emulator, and nothing is left behind."""

import ctypes
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor

import cutlass.cute as cute
import pytest
import torch
from cutlass import Float32, Int8, Int64
from cutlass.cute.runtime import from_dlpack, make_ptr
from cutlass.cute.typing import AddressSpace
from cutlass.cutlass_dsl import CuTeDSL
from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction
from cutlass.utils import HardwareInfo

import fa4.emulator
from fa4.emulator import sessions
from fa4.emulator.cuda_runtime import EmulatedRuntime
from fa4.emulator.errors import AddressError, LaunchError
from fa4.emulator.hook import Hook, LoadedFunction, the_hook
from fa4.emulator.program import Program
from tests.emulator import session_kernels as kernels

needs_tvm_ffi = pytest.mark.skipif(
    importlib.util.find_spec("tvm_ffi") is None,
    reason="apache-tvm-ffi is not installed (the `peers` extra brings it)",
)
PATHS = [
    pytest.param(False, id="default"),
    pytest.param(True, id="tvm-ffi", marks=needs_tvm_ffi),
]


def compile_settings():
    """What the DSL compiles for: by the environment, and by its own settings."""
    return os.environ.get("CUTE_DSL_ARCH"), CuTeDSL._get_dsl().envar._arch


def vectors(count=100):
    return torch.arange(1.0, count + 1), torch.full((count,), torch.nan)


@pytest.mark.parametrize("tvm_ffi", PATHS)
def test_a_compiled_function_runs_in_every_session(tvm_ffi):
    x, y = vectors()
    with fa4.emulator.session():
        compiled = kernels.compile_for(kernels.double, x, y, tvm_ffi)
    for schedule in ("early", "late", "random", "priority"):
        y.fill_(torch.nan)
        with fa4.emulator.session(schedule=schedule, seed=7) as emulated:
            kernels.call(compiled, x, y, tvm_ffi)
        assert torch.equal(y, 2 * x)
        (launch,) = emulated.launches
        assert "scale_kernel" in launch.name
        assert (launch.grid, launch.block, launch.cluster) == ((4, 1, 1), (32, 1, 1), (1, 1, 1))
        assert launch.stats.warp_instructions > 0


def test_calling_the_host_function_without_compiling_it_first():
    x, y = vectors()
    with fa4.emulator.session() as emulated:
        kernels.double(from_dlpack(x), from_dlpack(y))
        kernels.double(from_dlpack(x), from_dlpack(y))
    assert torch.equal(y, 2 * x)
    assert len(emulated.launches) == 2


@pytest.mark.parametrize("tvm_ffi", PATHS)
def test_two_kernels_of_the_same_name(tvm_ffi):
    x, y = vectors()
    with fa4.emulator.session() as emulated:
        twice, thrice = (
            kernels.compile_for(host, x, y, tvm_ffi) for host in (kernels.double, kernels.triple)
        )
        kernels.call(twice, x, y, tvm_ffi)
        assert torch.equal(y, 2 * x)
        kernels.call(thrice, x, y, tvm_ffi)
        assert torch.equal(y, 3 * x)
        kernels.call(twice, x, y, tvm_ffi)
        assert torch.equal(y, 2 * x)
    assert len({launch.name for launch in emulated.launches}) == 1


def test_parameters_of_every_size_and_a_cluster():
    x, _ = vectors()
    with fa4.emulator.session() as emulated:
        kernels.many_parameters(Int8(3), Float32(0.5), from_dlpack(x), Int64(1 << 20))
    assert x[0] == 0.5 + (1 << 20) + 3
    assert emulated.launches[0].cluster == (2, 1, 1)


def test_nested_sessions_and_their_devices():
    x, y = vectors()
    with fa4.emulator.session(num_sms=3) as outer:
        assert HardwareInfo().get_max_active_clusters(1) == 3
        with fa4.emulator.session(num_sms=8) as inner:
            assert HardwareInfo().get_device_multiprocessor_count() == 8
            assert HardwareInfo().get_max_active_clusters(2) == 4
            kernels.double(from_dlpack(x), from_dlpack(y))
        assert HardwareInfo().get_max_active_clusters(1) == 3
        assert HardwareInfo().get_l2_cache_size_in_bytes() == 126 << 20
        kernels.triple(from_dlpack(x), from_dlpack(y))
    assert len(outer.launches) == len(inner.launches) == 1


def test_nested_sessions_with_the_same_options_stay_apart():
    x, y = vectors()
    with fa4.emulator.session() as outer:
        with fa4.emulator.session() as inner:
            assert fa4.emulator.current_session() is inner
        assert fa4.emulator.current_session() is outer
        kernels.double(from_dlpack(x), from_dlpack(y))
    assert (len(outer.launches), len(inner.launches)) == (1, 0)


@pytest.mark.parametrize("tvm_ffi", PATHS)
def test_two_threads_in_one_session(tvm_ffi):
    pairs = [vectors(count) for count in (64, 640)]

    def view(tensor):
        return from_dlpack(tensor).mark_layout_dynamic()

    def work(pair):
        for _ in range(10):
            pair[1].fill_(torch.nan)
            compiled(*(pair if tvm_ffi else map(view, pair)))
            assert torch.equal(pair[1], 2 * pair[0])

    with fa4.emulator.session(), ThreadPoolExecutor(2) as threads:
        options = "--enable-tvm-ffi" if tvm_ffi else ""
        compiled = cute.compile(kernels.double, *map(view, pairs[0]), options=options)
        list(threads.map(work, pairs))


@pytest.mark.parametrize("tvm_ffi", PATHS)
def test_an_error_of_the_engine_comes_out_as_it_is(tvm_ffi, monkeypatch):
    x, y = vectors()
    error = AddressError("somewhere")

    def fail(*_args, **_kwargs):
        raise error

    with fa4.emulator.session() as emulated:
        compiled = kernels.compile_for(kernels.double, x, y, tvm_ffi)
        with monkeypatch.context() as patch:
            patch.setattr(Program, "run", fail)
            with pytest.raises(AddressError) as caught:
                kernels.call(compiled, x, y, tvm_ffi)
        assert caught.value is error
        kernels.call(compiled, x, y, tvm_ffi)  # and the next call is not affected
    assert torch.equal(y, 2 * x)
    assert len(emulated.launches) == 1


def test_keyboard_interrupt_passes_through_host_code(monkeypatch):
    x, y = vectors()

    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Program, "run", interrupt)
    with fa4.emulator.session(), pytest.raises(KeyboardInterrupt):
        kernels.double(from_dlpack(x), from_dlpack(y))


def compile_pointers(count):
    pointer = make_ptr(Float32, 16, AddressSpace.gmem, assumed_align=4)
    return cute.compile(kernels.double_pointers, pointer, pointer, count)


def pointer_to(tensor):
    return make_ptr(Float32, tensor.data_ptr(), AddressSpace.gmem, assumed_align=4)


def test_raw_pointers_need_registered_memory():
    x, y = vectors()
    with fa4.emulator.session() as emulated:
        compiled = compile_pointers(100)
        emulated.register(x, name="x")
        with pytest.raises(AddressError, match="outside every known range"):
            compiled(pointer_to(x), pointer_to(y), 100)
        emulated.register(y.data_ptr(), 400, "y")
        compiled(pointer_to(x), pointer_to(y), 100)
        assert torch.equal(y, 2 * x)
        with pytest.raises(AddressError):
            compiled(pointer_to(x), pointer_to(y), 101)
    with fa4.emulator.session(), pytest.raises(AddressError):
        compiled(pointer_to(x), pointer_to(y), 100)  # registrations end with their session


def test_lending_memory_and_labels_for_a_block(monkeypatch):
    x, y = vectors()
    labels, seen = fa4.emulator.Labels(warps=("copy",)), []
    run = Program.run

    def noted(*args, **options):
        seen.append(args[4])
        return run(*args, **options)

    monkeypatch.setattr(Program, "run", noted)
    assert fa4.emulator.current_session() is None
    with fa4.emulator.session() as emulated:
        assert fa4.emulator.current_session() is emulated
        compiled = compile_pointers(100)
        with emulated.lend({"x": x, "y": y}, labels):
            compiled(pointer_to(x), pointer_to(y), 100)
        with pytest.raises(AddressError):
            compiled(pointer_to(x), pointer_to(y), 100)
    assert torch.equal(y, 2 * x)
    assert seen == [labels, None]


def test_arguments_are_known_for_their_call_only():
    x, y = vectors()
    with fa4.emulator.session():
        kernels.double(from_dlpack(x), from_dlpack(y))
        compiled = compile_pointers(100)
        with pytest.raises(AddressError):
            compiled(pointer_to(x), pointer_to(y), 100)


@pytest.mark.parametrize("tvm_ffi", PATHS)
def test_a_function_compiled_without_ptx_says_what_to_do(tvm_ffi):
    x, y = map(fa4.emulator.as_cuda, vectors())
    compiled = kernels.compile_for(kernels.double, x, y, tvm_ffi)
    with fa4.emulator.session(), pytest.raises(RuntimeError, match="keep_ptx"):
        kernels.call(compiled, x, y, tvm_ffi)


@pytest.mark.skipif(torch.cuda.is_available(), reason="would launch on the GPU")
def test_a_function_that_the_dsl_cached_without_ptx_is_compiled_again():
    from cutlass.base_dsl.common import DSLCudaRuntimeError

    x, y = vectors(77)
    with pytest.raises(DSLCudaRuntimeError):
        kernels.double(*(from_dlpack(fa4.emulator.as_cuda(t)) for t in (x, y)))
    with fa4.emulator.session():
        kernels.double(from_dlpack(x), from_dlpack(y))
    assert torch.equal(y, 2 * x)


@pytest.mark.parametrize("tvm_ffi", PATHS)
def test_a_function_compiled_before_the_session_with_its_ptx(tvm_ffi):
    x, y = vectors()
    with fa4.emulator.keep_ptx():
        compiled = kernels.compile_for(kernels.double, *map(fa4.emulator.as_cuda, (x, y)), tvm_ffi)
    with fa4.emulator.session():
        kernels.call(compiled, x, y, tvm_ffi)
    assert torch.equal(y, 2 * x)


def test_nothing_is_left_behind():
    from cutlass.cute.runtime import _Tensor
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    owners = (_Tensor, CudaDialectJitCompiledFunction, HardwareInfo)
    before = [dict(vars(owner)) for owner in owners]
    environment = dict(os.environ)
    x, y = vectors()
    with fa4.emulator.session(), fa4.emulator.session():
        kernels.double(from_dlpack(x), from_dlpack(y))
    with pytest.raises(ValueError, match="nothing"), fa4.emulator.session():
        raise ValueError("nothing may survive an error either")
    assert [dict(vars(owner)) for owner in owners] == before
    assert dict(os.environ) == environment


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "lazy"}, "schedule='lazy'"),
        ({"arch": "sm_80"}, "arch='sm_80'"),
        ({"num_sms": 0}, "num_sms=0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fa4.emulator.session(**options)


def test_a_session_opens_once_at_a_time():
    session = fa4.emulator.session()
    with session, pytest.raises(RuntimeError, match="already open"):
        session.__enter__()


def test_a_session_that_could_not_open_leaves_nothing_behind(monkeypatch):
    before, session = compile_settings(), fa4.emulator.session(arch="sm_90a")

    def broken(*_args):
        raise RuntimeError("no patches")

    with monkeypatch.context() as patched:
        patched.setattr(Hook, "_install", broken)
        with pytest.raises(RuntimeError, match="no patches"):
            session.__enter__()
    assert compile_settings() == before
    assert fa4.emulator.current_session() is None
    with session:
        assert fa4.emulator.current_session() is session


def test_threads_may_close_their_sessions_in_any_order():
    before = compile_settings()
    first, second = fa4.emulator.session(arch="sm_90a"), fa4.emulator.session(arch="sm_100a")
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(first.__enter__).result()
        other.submit(second.__enter__).result()
        one.submit(first.__exit__, None, None, None).result()
        assert compile_settings() == ("sm_100a", "sm_100a")
        assert fa4.emulator.current_session() is second
        other.submit(second.__exit__, None, None, None).result()
    assert compile_settings() == before


def test_other_threads_go_on_natively_while_one_call_is_emulated(monkeypatch):
    monkeypatch.setattr(HardwareInfo, "get_l2_cache_size_in_bytes", lambda info: 7)
    monkeypatch.setattr(CudaDialectJitCompiledFunction, "__call__", lambda *args: "native")

    def l2_bytes():
        return HardwareInfo.get_l2_cache_size_in_bytes(None)

    loaded = LoadedFunction(the_hook(), lambda: "emulated")
    with ThreadPoolExecutor(1) as other, sessions.Session(implicit=True) as here:
        assert l2_bytes() == here.device.l2_bytes
        assert loaded() == "emulated"
        assert other.submit(l2_bytes).result() == 7
        assert other.submit(CudaDialectJitCompiledFunction.__call__, None).result() == "native"
        with pytest.raises(RuntimeError, match="call it inside"):
            other.submit(loaded).result()
    with ThreadPoolExecutor(1) as other, sessions.Session() as here:
        assert other.submit(l2_bytes).result() == here.device.l2_bytes


def test_ptx_is_kept_until_the_last_who_asked_for_it_is_done():
    x, y = vectors()
    first = fa4.emulator.keep_ptx()
    first.__enter__()
    with fa4.emulator.keep_ptx():
        first.__exit__(None, None, None)
        compiled = kernels.compile_for(kernels.double, *map(fa4.emulator.as_cuda, (x, y)), False)
    with fa4.emulator.session():
        kernels.call(compiled, x, y, False)
    assert torch.equal(y, 2 * x)


def test_what_no_device_attribute_says_is_not_made_up():
    device = fa4.emulator.session().device
    assert (device.attribute(95), device.attribute(120)) == (1, 1)  # cooperative, cluster launch
    runtime, value = EmulatedRuntime(print, device.attribute), ctypes.c_int(-1)
    assert runtime.callbacks()["_cudaDeviceGetAttribute"](ctypes.byref(value), 13, 0) != 0
    with pytest.raises(NotImplementedError, match="cudaDeviceAttr 13 "):
        raise runtime.pending


def test_registering_what_is_no_host_memory():
    session = fa4.emulator.session()
    with pytest.raises(ValueError, match="nbytes=None"):
        session.register(4096)
    with pytest.raises(ValueError, match="meta"):
        session.register(torch.empty(4, device="meta"))


def test_a_session_that_stands_for_an_h200():
    x, y = vectors()
    with fa4.emulator.session(arch="sm_90a") as emulated:
        attribute = emulated.device.attribute
        assert [attribute(n) for n in (75, 76, 16, 38, 97)] == [9, 0, 132, 50 << 20, 232448]
        assert HardwareInfo().get_device_multiprocessor_count() == 132
        assert HardwareInfo().get_l2_cache_size_in_bytes() == 50 << 20
        compiled = kernels.compile_for(kernels.double, x, y, False)
        kernels.call(compiled, x, y, False)
    assert torch.equal(y, 2 * x)
    with fa4.emulator.session(arch="sm_90a", num_sms=5) as emulated:
        assert HardwareInfo().get_max_active_clusters(1) == 5
        assert emulated.device.attribute(75) == 9


@pytest.mark.parametrize(("arch", "other"), [("sm_90a", "sm_100a"), ("sm_100a", "sm_90a")])
def test_a_kernel_for_another_gpu(arch, other):
    x, y = vectors()
    with fa4.emulator.session(arch=arch):
        compiled = kernels.compile_for(kernels.double, x, y, False)
    with fa4.emulator.session(arch=other), pytest.raises(LaunchError, match=f"compiled for {arch}"):
        kernels.call(compiled, x, y, False)


def test_targets_that_a_gpu_runs():
    for target, arch in (("sm_80", "sm_90a"), ("sm_100f", "sm_100a"), ("sm_90", "sm_100a")):
        sessions._check_target(target, arch)
    for target, arch in (("sm_100", "sm_90a"), ("sm_100f", "sm_90a"), ("sm_103a", "sm_100a")):
        with pytest.raises(LaunchError):
            sessions._check_target(target, arch)
