"""Where a launch goes: CUDA tensors to the device, CPU tensors to the emulator, never crosswise."""

from unittest import mock

import pytest
import torch

from fa4 import emulator, launch
from fa4.plan import plan_forward
from fa4.problem import example_problem

PROBLEM = example_problem(64, seqlen_q=8, seqlen_k=8)


class OnDevice:
    """A tensor that says it is on a GPU."""

    device = torch.device("cuda", 0)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.stride, self.data_ptr = tensor.stride, tensor.data_ptr


def forward(kind: type) -> tuple[mock.Mock, mock.Mock]:
    """One call of `launch.forward`; the native and the emulated way, as far as they were called."""
    tensors = [kind(torch.zeros(1, 8, 1, 64, dtype=torch.bfloat16)) for _ in "qkvo"]
    with (
        mock.patch.object(launch, "_launch_native") as native,
        mock.patch.object(launch, "_launch_emulated") as emulated,
    ):
        launch.forward(PROBLEM, plan_forward(PROBLEM), *tensors, kind(torch.zeros(1, 1, 8)))
    return native, emulated


def test_the_device_of_the_tensors_decides() -> None:
    native, emulated = forward(OnDevice)
    assert (native.call_count, emulated.call_count) == (1, 0)
    native, emulated = forward(lambda tensor: tensor)
    assert (native.call_count, emulated.call_count) == (0, 1)


def test_cuda_tensors_are_refused_inside_a_session() -> None:
    with emulator.session(), pytest.raises(ValueError, match=r"q is on cuda:0 inside.*CPU tensors"):
        forward(OnDevice)
