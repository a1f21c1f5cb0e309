"""Results are allocated, and kernels launched, on the device of the tensors."""

from __future__ import annotations

import pytest
import torch

from fa4 import api, gradients
from tests.kernel.fake_gpu import DEVICE, Gpu

OPTIONS = (None, False, None, None, 0.0, False)
MEMORY = (1,), (1,), torch.float32


class Recorder:
    """Allocates and launches; keeps what the current device was."""

    def __init__(self, gpu: Gpu) -> None:
        self.devices: list[int] = []
        self.gpu = gpu

    def empty(self, *_: object) -> torch.Tensor:
        self.devices.append(self.gpu.current)
        return torch.zeros(1)

    def launch(self, *_: object) -> None:
        self.devices.append(self.gpu.current)


@pytest.mark.parametrize("current", [0, DEVICE])
def test_forward(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, current: int) -> None:
    seen, q = Recorder(gpu), torch.zeros(1, 1, 1, 8)
    call = api._Call(MEMORY, MEMORY, seen.empty, DEVICE, seen.launch, copies=False)
    monkeypatch.setattr(api, "_prepare", lambda *_: call)
    gpu.current = current
    api.attention(q, q, q, OPTIONS)
    assert seen.devices == [DEVICE] * 3
    assert gpu.current == current


@pytest.mark.parametrize("current", [0, DEVICE])
def test_backward(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, current: int) -> None:
    seen, q, lse = Recorder(gpu), torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1)
    call = gradients._Call([MEMORY] * 3, seen.empty, DEVICE, seen.launch, copies=False)
    monkeypatch.setattr(gradients, "_prepare", lambda *_: call)
    gpu.current = current
    gradients.attention_backward(q, None, q, q, q, q, lse, *OPTIONS)
    assert seen.devices == [DEVICE] * 4
    assert gpu.current == current
