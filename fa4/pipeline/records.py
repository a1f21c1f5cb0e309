"""The records that a probed kernel leaves behind: where they lie and what they mean. Pure Python.

A record is two 64-bit words: the SM's clock when a warp began to wait; and, from the low bits up,
the clocks it waited (32), what it waited for (12) and the record's number within its warp (20).
Every warp has a ring of them, CTA by CTA; a word that was never written is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from fa4.plan_base import BasePlan, require

WORDS = 2  # per record
WORD_BYTES = 8
SLOT_BITS = 12  # 1 + number of the mbarrier in shared memory
NUMBER_BITS = 20
START = (1 << SLOT_BITS) - 1  # the first record of a warp, when its role begins; holds the SM


@dataclass(frozen=True)
class ProbeBuffer:
    """Zeroed device memory for the records of one launch.

    It is part of a plan: the address is a constant of the compiled code, so a plan without a probe
    compiles to code without a trace of it. records: per warp, a power of two; the last ones stay.
    """

    address: int
    records: int

    def __post_init__(self) -> None:
        require(
            self.records > 0 and self.records & (self.records - 1) == 0,
            f"records={self.records} per warp; take a power of two",
        )


@dataclass(frozen=True)
class IketRanges:
    """The other kind of probe: waits are ranges of NVIDIA's In-Kernel Event Tracing.

    The compiler drops them unless it runs under `run-iket`, which comes with the CuTe DSL.
    """


def buffer_words(plan: BasePlan, ctas: int, records: int) -> int:
    """64-bit words that a launch of `ctas` CTAs needs."""
    return ctas * (plan.threads // 32) * records * WORDS
