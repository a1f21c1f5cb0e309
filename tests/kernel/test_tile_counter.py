"""Which tile counter a launch gets: never one that another launch may be using."""

import ctypes
from collections.abc import Iterator
from unittest import mock

import pytest
import torch

from fa4 import tile_counter
from fa4.tile_counter import TileCounters


class Gpu:
    """Streams and captures; `synchronized` counts waits for a stream."""

    def __init__(self) -> None:
        self.capture, self.synchronized = 0, 0

    def current_stream(self, _device: torch.device) -> mock.Mock:
        def synchronize() -> None:
            assert not self.capture, "a capture cannot wait"
            self.synchronized += 1

        return mock.Mock(synchronize=synchronize)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    gpu = Gpu()
    with (
        mock.patch.multiple(
            torch._C, create=True, _cuda_isCurrentStreamCapturing=lambda: gpu.capture > 0
        ),
        mock.patch.object(tile_counter, "_capture_id", side_effect=lambda _: gpu.capture),
        mock.patch.object(torch.cuda, "current_stream", gpu.current_stream),
        mock.patch.object(tile_counter, "SPARE", 6),
    ):
        yield gpu


@pytest.fixture
def counters() -> TileCounters:
    return TileCounters(torch.device("cpu"))


def value(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def test_a_stream_keeps_its_zero_and_shares_it_with_none(gpu: Gpu, counters: TileCounters) -> None:
    first, second = counters.address(0), counters.address(0x10)
    assert first != second
    assert (value(first), value(second)) == (0, 0)
    assert (counters.address(0), counters.address(0x10)) == (first, second)
    assert gpu.synchronized == 1  # the zeros were written on one stream, and serve all


def test_a_graph_has_its_own(gpu: Gpu, counters: TileCounters) -> None:
    """Its launches run on the stream that it is replayed on, beside those of the stream that it
    was captured on, and beside other graphs."""
    eager = counters.address(0x10)
    gpu.capture = 7
    graph, branch = counters.address(0x10), counters.address(0x20)
    assert counters.address(0x10) == graph
    gpu.capture = 8
    other = counters.address(0x10)
    gpu.capture = 0
    assert counters.address(0x10) == eager
    assert len({eager, graph, branch, other}) == 4
    assert gpu.synchronized == 1


def test_a_capture_that_nothing_came_before_zeroes_its_own(
    gpu: Gpu, counters: TileCounters
) -> None:
    gpu.capture = 7
    with mock.patch.object(torch, "zeros", wraps=torch.zeros) as zeros:
        counters.address(0x10)
        counters.address(0x10)
    assert zeros.call_count == 2  # in the graph, before each launch
    gpu.capture = 0
    eager = counters.address(0x10)
    assert value(eager) == 0
    assert gpu.synchronized == 1


def test_there_are_always_more(gpu: Gpu, counters: TileCounters) -> None:
    addresses = [counters.address(stream) for stream in range(20)]
    assert len(set(addresses)) == 20
    assert [counters.address(stream) for stream in range(20)] == addresses
    assert all(value(address) == 0 for address in addresses)
    assert gpu.synchronized == 4
