"""What a native launch asks of torch and of the compiled host function, without a GPU."""

import struct
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from fa4 import emulator
from fa4.arguments import BACKWARD_INTEGERS, BACKWARD_NUMBERS, INTEGERS, NUMBERS

DEVICE, OTHER_STREAM = 1, 0x5EED
BLOCKS = ((INTEGERS, NUMBERS), (BACKWARD_INTEGERS, BACKWARD_NUMBERS))


class OnDevice:
    """A tensor that says it is on a GPU."""

    device = torch.device("cuda", DEVICE)

    def __init__(self, address: int) -> None:
        self.data_ptr = lambda: address


class Gpu:
    """Keeps what reaches the compiled host function."""

    def __init__(self) -> None:
        self.current, self.stream, self.error = DEVICE, OTHER_STREAM, 0
        self.launches: list[SimpleNamespace] = []

    def entry(self, block: bytes, stream: int) -> int:
        integers, numbers = next(
            names for names in BLOCKS if 8 * sum(map(len, names)) == len(block)
        )
        values = struct.unpack(f"={len(integers)}q{len(numbers)}d", block)
        fields = dict(zip((*integers, *numbers), values, strict=True))
        self.launches.append(SimpleNamespace(device=self.current, stream=stream, **fields))
        return self.error

    def device(self, index: int) -> mock.MagicMock:
        before, guard = self.current, mock.MagicMock()
        guard.__enter__.side_effect = lambda: setattr(self, "current", index)
        guard.__exit__.side_effect = lambda *_: setattr(self, "current", before)
        return guard


def refused_inside_a_session(gpu: Gpu, prepare: Callable[[], Callable[[], None]]) -> None:
    """Neither to prepare a launch of `OnDevice` tensors nor to call a prepared one is possible."""
    run, message = prepare(), r"q is on cuda:1 inside.*takes cpu tensors"
    with emulator.session():
        with pytest.raises(ValueError, match=message):
            prepare()
        with pytest.raises(ValueError, match=message):
            run()
    assert not gpu.launches
