"""What a session delays or spoils on purpose."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_NAP = 1000.0  # microseconds: nanosleep sleeps at most a millisecond
SHORTEST_NAP = 0.01  # microseconds: of whole nanoseconds, at random below it, some must be left
SKEW = 60.0  # microseconds


@dataclass(frozen=True)
class Modes:
    """Every mode makes legal behaviour unusual; a right kernel gives the same result in all.

    skew: in every CTA some warps, which a seed chooses, sleep before a quarter of their
        synchronising and asynchronous instructions, for a random time below this many microseconds;
        0.0 is off.
    defer: MMAs start when their commit is issued, not earlier.
    lazy: stores to tensor memory land at the wait of their thread, not earlier.
    poison: shared and tensor memory start as NaN instead of what the last CTA left.
    """

    skew: float = 0.0
    defer: bool = False
    lazy: bool = False
    poison: bool = False

    def __post_init__(self) -> None:
        if self.skew != 0.0 and not SHORTEST_NAP <= self.skew <= LONGEST_NAP:
            raise ValueError(
                f"skew={self.skew!r}: 0 (off) and microseconds from {SHORTEST_NAP} to "
                f"{LONGEST_NAP:.0f} are allowed"
            )

    @property
    def nap(self) -> int:
        """Naps are shorter than this many nanoseconds; 0: nobody sleeps."""
        return round(self.skew * 1000)


MODES = {
    "plain": Modes(),
    "skew": Modes(skew=SKEW),
    "defer": Modes(defer=True),
    "lazy": Modes(lazy=True),
    "poison": Modes(poison=True),
    "all": Modes(skew=SKEW, defer=True, lazy=True, poison=True),
}
"""Each alone, and all together: what `fa4 verify` and `bench on-hopper` run kernels in."""
