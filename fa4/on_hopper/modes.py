"""What a session delays or spoils on purpose."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_NAP = 1000.0  # microseconds: nanosleep sleeps at most a millisecond


@dataclass(frozen=True)
class Modes:
    """Every mode makes legal behaviour unusual; a right kernel gives the same result in all.

    skew: in every CTA some warps, which a seed chooses, sleep up to this many microseconds before
        a quarter of their synchronising and asynchronous instructions; 0.0 is off.
    defer: MMAs start when their commit is issued, not earlier.
    lazy: stores to tensor memory land at the wait of their thread, not earlier.
    poison: shared and tensor memory start as NaN instead of what the last CTA left.
    """

    skew: float = 0.0
    defer: bool = False
    lazy: bool = False
    poison: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.skew <= LONGEST_NAP:
            raise ValueError(
                f"skew={self.skew!r}: microseconds from 0 (off) to {LONGEST_NAP:.0f} are allowed"
            )

    @property
    def nap_mask(self) -> int:
        """The longest nap in nanoseconds, as a mask of random bits; 0: nobody sleeps."""
        return (1 << (int(self.skew * 1000)).bit_length()) - 1
