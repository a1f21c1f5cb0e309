"""Where a launch goes: CUDA tensors to the device, CPU tensors to the emulator, never crosswise."""

import ctypes
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from fa4 import launch
from fa4.compile import c_interface
from fa4.emulator.errors import EmulatorError
from fa4.plan import plan_forward
from fa4.problem import example_problem
from fa4.tile_counter import TileCounters
from tests.kernel.fake_gpu import OTHER_STREAM, Gpu, OnDevice, refused_inside_a_session

PROBLEM = example_problem(64, seqlen_q=8, seqlen_k=9, scale=0.25, causal=True)
STRIDES = ((512, 64, 64, 1), (576, 64, 64, 1), (640, 72, 64, 1), (512, 64, 64, 1))


def native(gpu: Gpu, arch: str = "sm_90a", with_lse: bool = True) -> launch.Launch:
    """A native launch on DEVICE; its tile counters lie at 1000 + stream."""
    plan = plan_forward(PROBLEM, arch)
    counters = mock.Mock(TileCounters)
    counters.address.side_effect = lambda stream: 1000 + stream
    properties = SimpleNamespace(multi_processor_count=132)
    with (
        mock.patch.object(launch, "host_function", return_value=gpu.entry),
        mock.patch.object(launch, "tile_counters", return_value=counters),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=properties),
    ):
        return launch.prepare(PROBLEM, plan, STRIDES, OnDevice.device, with_lse)


def tensors() -> list[OnDevice]:
    return [OnDevice(address) for address in (16, 32, 48, 64, 80)]


def test_every_field_of_the_block_reaches_the_host_function(gpu: Gpu) -> None:
    native(gpu)(*tensors())
    (found,) = gpu.launches
    assert (found.q, found.k, found.v, found.o, found.lse) == (16, 32, 48, 64, 80)
    assert (found.tile_counter, found.num_ctas) == (1000 + OTHER_STREAM, 132)
    assert (found.batch, found.seqlen_q, found.seqlen_k) == (1, 8, 9)
    assert (found.heads_q, found.heads_kv, found.head_dim, found.head_dim_v) == (1, 1, 64, 64)
    for name, (batch, row, head, _) in zip("qkvo", STRIDES, strict=True):
        strides = [getattr(found, f"{name}_{axis}") for axis in ("batch", "row", "head")]
        assert strides == [batch, row, head]
    assert (found.left, found.right, found.section, found.lse_rows) == (0, 0, 1, 8)
    assert found.softmax_scale == 0.25
    assert found.scale_log2 == pytest.approx(0.25 / torch.log(torch.tensor(2.0)).item())
    assert found.stream == OTHER_STREAM


def test_each_launch_has_its_own_addresses_and_stream(gpu: Gpu) -> None:
    run = native(gpu)
    run(*tensors())
    gpu.stream = 7
    run(*reversed(tensors()))
    assert [(one.q, one.lse, one.stream) for one in gpu.launches] == [
        (16, 80, OTHER_STREAM),
        (80, 16, 7),
    ]
    assert gpu.launches[1].tile_counter == 1007


def test_an_lse_that_nobody_asks_for_has_no_rows(gpu: Gpu) -> None:
    native(gpu, with_lse=False)(*tensors()[:4], None)
    assert (gpu.launches[0].lse, gpu.launches[0].lse_rows) == (0, 0)


def test_blackwell_has_no_tile_counter(gpu: Gpu) -> None:
    native(gpu, "sm_100a")(*tensors())
    assert gpu.launches[0].tile_counter == 0


def test_an_error_of_the_driver_is_raised_by_its_name(gpu: Gpu) -> None:
    gpu.error = 1
    with pytest.raises(RuntimeError, match=r"fa4_fwd_d64_.* failed with cudaErrorInvalidValue"):
        native(gpu)(*tensors())


def test_threads_may_share_a_launch(gpu: Gpu) -> None:
    run, start = native(gpu), threading.Barrier(4)

    def many(first: int) -> None:
        start.wait()
        for address in range(first, first + 16 * 500, 16):
            run(*[OnDevice(address + i) for i in range(5)])

    threads = [threading.Thread(target=many, args=(n << 32,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.q for one in gpu.launches}) == 2000
    assert all(
        (one.k, one.v, one.o, one.lse) == (one.q + 1, one.q + 2, one.q + 3, one.q + 4)
        for one in gpu.launches
    )


def test_cuda_tensors_are_refused_inside_a_session(gpu: Gpu) -> None:
    refused_inside_a_session(gpu, lambda: partial(native(gpu), *tensors()))


def test_cuda_tensors_run_while_another_thread_emulates(gpu: Gpu) -> None:
    run, plan = native(gpu), plan_forward(PROBLEM)
    with launch.emulating(plan, torch.device("cpu"), {}), ThreadPoolExecutor(1) as other:
        other.submit(run, *tensors()).result(timeout=60)
        other.submit(lambda: native(gpu)(*tensors())).result(timeout=60)
    assert len(gpu.launches) == 2


def test_cpu_tensors_are_emulated(gpu: Gpu) -> None:
    run = launch.prepare(PROBLEM, plan_forward(PROBLEM), STRIDES, torch.device("cpu"), True)
    assert isinstance(run, launch._SessionLaunch)


@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_an_lse_that_nobody_asks_for_is_not_written(arch: str) -> None:
    """Its address would be 0: the emulator raises for a write there."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, n, 1, 64).bfloat16() for n in (8, 9, 9))
    outs = []
    for lse in (torch.full((1, 1, 8), torch.nan), None):
        out = torch.full_like(q, torch.nan)
        strides = tuple(t.stride() for t in (q, k, v, out))
        plan, device = plan_forward(PROBLEM, arch), torch.device("cpu")
        launch.prepare(PROBLEM, plan, strides, device, lse is not None)(q, k, v, out, lse)
        assert lse is None or not lse.isnan().any()
        outs.append(out)
    assert torch.equal(*outs)


def test_an_error_of_the_emulated_runtime_is_raised() -> None:
    plan = plan_forward(PROBLEM, "sm_90a")
    values = [torch.zeros(1, 9, 1, 64, dtype=torch.bfloat16) for _ in "qkvo"]
    run = launch.prepare(PROBLEM, plan, STRIDES, torch.device("cpu"), True)
    with (
        mock.patch.object(launch, "host_function", return_value=lambda block, stream: 1),
        pytest.raises(RuntimeError, match="failed with cudaErrorInvalidValue"),
    ):
        run(*values, torch.zeros(1, 1, 8))


def test_bytes_are_passed_to_c_whole() -> None:
    """The block holds zero bytes, where a C string would end."""
    copies = []

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    def entry(block: int, stream: int) -> int:
        copies.append((ctypes.string_at(block, 24), stream))
        return 3

    address = ctypes.cast(entry, ctypes.c_void_p).value
    engine = SimpleNamespace(lookup={"x_ciface_f": address}.__getitem__)
    block = struct.pack("=3q", 1, 0, -1)
    assert c_interface(engine, "_mlir_x_ciface_f")(block, 2**63 + 5) == 3
    assert copies == [(block, 2**63 + 5)]


@pytest.mark.parametrize("error", [EmulatorError, KeyboardInterrupt])
def test_an_aborted_launch_leaves_no_count_behind(error: type[BaseException]) -> None:
    """Hopper's tiles are counted in memory that launches share; a nonzero start would skip some."""
    tensors = [torch.zeros(1, 8, 1, 64, dtype=torch.bfloat16) for _ in "qkvo"]

    def aborted(*_: object) -> None:
        launch._emulated_counter().add_(5)
        raise error("aborted")

    plan = plan_forward(PROBLEM, "sm_90a")
    run = launch.prepare(PROBLEM, plan, STRIDES, torch.device("cpu"), True)
    with (
        mock.patch.object(launch, "host_function", return_value=aborted),
        pytest.raises(error),
    ):
        run(*tensors, torch.zeros(1, 1, 8))
    assert launch._emulated_counter().item() == 0


def test_the_counter_is_ordinary_memory_wherever_it_is_made() -> None:
    """Whatever the default device, and also where the first call is one in inference mode."""
    launch._emulated_counter.cache_clear()
    with torch.device("meta"), torch.inference_mode():
        counter = launch._emulated_counter()
    assert counter.zero_().device.type == "cpu"
