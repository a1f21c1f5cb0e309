"""Probes inside the kernel, which note every mbarrier wait (the edges) of a warp.

Named barriers, wgmma.wait_group and cp.async.bulk.wait_group are not noted: they count as work. A
plan without a probe has none of this.

`Probe` writes records to a ring in global memory. All active lanes of a warp write the same one:
that is one transaction, and takes no choice of a lane, which a role of a single thread cannot make.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.experimental import iket

from fa4.pipeline.records import (
    NUMBER_BITS,
    SLOT_BITS,
    START,
    WORD_BYTES,
    WORDS,
    IketRanges,
    ProbeBuffer,
)
from fa4.pipeline.storage import MBARRIER_BYTES


@dataclass(frozen=True)
class Probe:
    """The ring of the executing warp, and how many records it has made (in a register)."""

    buffer: ProbeBuffer
    smem: cute.Pointer  # where the mbarriers start
    count: cute.Tensor | None = None

    def start(self) -> Probe:
        """For a warp whose role begins: a count of its own, and a record of the time and the SM."""
        count = cute.make_rmem_tensor(1, Int32)
        count[0] = Int32(0)
        started = replace(self, count=count)
        started._write(cute.arch.clock64(), Int64(cute.arch.smid()), Int32(START))
        return started

    def begin(self, name: str) -> Int64:
        """A wait begins; returns the cycles of this SM."""
        return cute.arch.clock64()

    def end(self, begin: Int64, mbarrier: cute.Pointer) -> None:
        """The wait for `mbarrier` that began at `begin` ends."""
        slot = (mbarrier.toint() - self.smem.toint()) // MBARRIER_BYTES + 1
        self._write(begin, cute.arch.clock64() - begin, Int32(slot))

    def _write(self, begin: Int64, length: Int64, slot: Int32) -> None:
        number = self.count[0]
        ring = self._ring()
        at = (number & (self.buffer.records - 1)) * WORDS
        tag = slot | (number & ((1 << NUMBER_BITS) - 1)) << SLOT_BITS
        ring[at] = begin
        ring[at + 1] = (length & 0xFFFFFFFF) | Int64(tag) << 32
        self.count[0] = number + 1

    def _ring(self) -> cute.Tensor:
        """(words,) of the executing warp."""
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        threads, _, _ = cute.arch.block_dim()
        words = self.buffer.records * WORDS
        warp = cta * (threads // 32) + thread // 32
        address = Int64(self.buffer.address) + Int64(warp) * (words * WORD_BYTES)
        ring = cute.make_ptr(Int64, address, cute.AddressSpace.gmem, assumed_align=16)
        return cute.make_tensor(ring, cute.make_layout(words))


@dataclass(frozen=True)
class IketProbe:
    """Waits as IKET ranges, named after their edges; `run-iket` collects them."""

    def start(self) -> IketProbe:
        """For a warp whose role begins: IKET knows warps itself."""
        return self

    def begin(self, name: str) -> None:
        """A wait begins."""
        iket.range_push(name)

    def end(self, begin: None, mbarrier: cute.Pointer) -> None:
        """The wait ends."""
        iket.range_pop()


def make_probe(
    kind: ProbeBuffer | IketRanges | None, smem: cute.Pointer
) -> Probe | IketProbe | None:
    """The probe that a plan asks for, or None; `smem` is where the mbarriers start."""
    if isinstance(kind, IketRanges):
        return IketProbe()
    return None if kind is None else Probe(kind, smem)
