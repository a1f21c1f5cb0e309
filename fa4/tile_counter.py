"""Where the tile counters of Hopper launches lie: zeros that every launch leaves behind as zeros.

Launches that may overlap must not share one. Those of one stream never overlap, so a stream has
one counter. A captured launch runs on whatever stream its graph is replayed on, so each graph has
one per stream that it was captured on.
"""

from __future__ import annotations

from functools import cache
from threading import Lock

import cuda.bindings.driver as cuda
import torch

SPARE = 4096  # counters fetched at once; 16 KiB


class TileCounters:
    """The counters of one device, which is the current one during all calls."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._addresses: dict[tuple[int, int], int] = {}  # by stream and capture, 0 for none
        self._spare: list[int] = []
        self._keep: list[torch.Tensor] = []  # for good: nobody says when a graph is gone
        self._of_a_graph: torch.Tensor | None = None
        self._lock = Lock()

    def address(self, stream: int) -> int:
        """Of the counter for a launch on the stream, which is the current one."""
        # the function behind torch.cuda.is_current_stream_capturing
        captured = torch._C._cuda_isCurrentStreamCapturing()
        key = (stream, _capture_id(stream) if captured else 0)
        return self._addresses.get(key) or self._take(key)

    def _take(self, key: tuple[int, int]) -> int:
        _, capture = key
        with self._lock:
            if not self._spare:
                if capture:
                    return self._inside_the_graph()
                self._fetch()
            return self._addresses.setdefault(key, self._spare.pop())

    def _fetch(self) -> None:
        """More zeros, which are there when this returns, for whatever stream."""
        zeros = torch.zeros(SPARE, dtype=torch.int32, device=self._device)
        torch.cuda.current_stream(self._device).synchronize()
        self._keep.append(zeros)
        first = zeros.data_ptr()
        self._spare += range(first, first + 4 * SPARE, 4)

    def _inside_the_graph(self) -> int:
        """Nothing can be fetched in a capture: a zero that the graph itself writes before the
        launch, in the graph's memory. Once that is handed to a later operation of the graph, the
        launch is over.
        """
        zero = torch.zeros(1, dtype=torch.int32, device=self._device)
        self._of_a_graph = zero
        return zero.data_ptr()


@cache
def tile_counters(device: torch.device) -> TileCounters:
    """The counters of a device."""
    return TileCounters(device)


def _capture_id(stream: int) -> int:
    """A number above 0 that no other capture of this process has."""
    error, _, capture, *_ = cuda.cuStreamGetCaptureInfo(cuda.CUstream(stream))
    if error != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuStreamGetCaptureInfo: {error.name}; is the capture still valid?")
    return int(capture)
