"""A native launch of the backward pass, up to the host function; emulated ones have tests/backward.

What both passes do alike is tested of the forward.
"""

from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from fa4 import launch_backward
from fa4.allocation import EMPTY
from fa4.launch_backward import BackwardLaunch, BackwardTensors
from fa4.plan_backward import plan_backward
from fa4.problem import example_problem
from tests.kernel.fake_gpu import DEVICE, OTHER_STREAM, Gpu, OnDevice, refused_inside_a_session

PROBLEM = example_problem(
    64, batch=2, seqlen_q=70, seqlen_k=90, heads_q=4, heads_kv=2, scale=0.25, deterministic=True
)
ARRAYS = ("q", "k", "v", "o", "do", "dq", "dk", "dv")
STRIDES = tuple((8000 + 8 * i, 800 + 8 * i, 80 + 8 * i, 1) for i in range(len(ARRAYS)))
WORKSPACE = 1 << 20


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Floats of the workspaces, which all lie at WORKSPACE."""
    asked: list[int] = []

    def empty(shape: tuple[int], strides: tuple[int], dtype: torch.dtype) -> OnDevice:
        assert (strides, dtype) == ((1,), torch.float32)
        asked.extend(shape)
        return OnDevice(WORKSPACE)

    monkeypatch.setitem(EMPTY, "cuda", empty)
    return asked


def native(gpu: Gpu, arch: str = "sm_90a") -> BackwardLaunch:
    with (
        mock.patch.object(launch_backward, "host_function", return_value=gpu.entry),
        mock.patch.object(launch_backward, "num_sms", return_value=132),
    ):
        plan = plan_backward(PROBLEM, arch)
        return launch_backward.prepare(PROBLEM, plan, STRIDES, OnDevice.device)


def tensors(first: int = 16, dlse: bool = True) -> BackwardTensors:
    given = [OnDevice(first + 16 * i) for i in range(10)]
    return BackwardTensors(*given)._replace(**{} if dlse else {"dlse": None})


def addresses(found: SimpleNamespace) -> list[int]:
    return [getattr(found, name) for name in BackwardTensors._fields]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_every_field_of_the_block_reaches_the_host_function(
    gpu: Gpu, sizes: list[int], arch: str
) -> None:
    native(gpu, arch)(tensors())
    (found,), plan = gpu.launches, plan_backward(PROBLEM, arch)
    assert addresses(found) == [16 * i for i in range(1, 11)]
    assert (found.batch, found.seqlen_q, found.seqlen_k) == (2, 70, 90)
    assert (found.heads_q, found.heads_kv, found.head_dim, found.head_dim_v) == (4, 2, 64, 64)
    for name, (batch, row, head, _) in zip(ARRAYS, STRIDES, strict=True):
        strides = [getattr(found, f"{name}_{axis}") for axis in ("batch", "row", "head")]
        assert strides == [batch, row, head]
    assert (found.num_ctas, found.stream, found.device) == (132, OTHER_STREAM, DEVICE)
    assert (found.gradient_scale, found.left, found.right) == (0.25, 0, 0)
    blocks = -(-70 // plan.m_tile) * 4 * 2
    parts = {"dq_sum": blocks * plan.dq_block_floats, "lse_log2": blocks * plan.m_tile}
    parts |= {"delta": blocks * plan.m_tile, "turns": blocks * plan.turns}
    parts["tile_counter"] = int(plan.persistent)
    at = WORKSPACE
    for name, floats in parts.items():
        assert getattr(found, name) == at, name
        at += 4 * floats
    assert sizes == [sum(parts.values())]


def test_each_launch_has_its_own_addresses_and_stream(gpu: Gpu, sizes: list[int]) -> None:
    run = native(gpu)
    run(tensors())
    gpu.stream = 7
    run(tensors(16000, dlse=False))
    first, second = gpu.launches
    assert (first.q, first.stream, second.q, second.stream) == (16, OTHER_STREAM, 16000, 7)
    assert (first.dlse, second.dlse) == (16 * 7, 0)
    assert len(sizes) == 2


def test_an_error_of_the_driver_is_raised_by_its_name(gpu: Gpu, sizes: list[int]) -> None:
    gpu.error = 1
    with pytest.raises(RuntimeError, match=r"fa4_bwd_d64_.* failed with cudaErrorInvalidValue"):
        native(gpu)(tensors())
    assert sizes


def test_cuda_tensors_are_refused_inside_a_session(gpu: Gpu) -> None:
    refused_inside_a_session(gpu, lambda: partial(native(gpu), tensors()))
