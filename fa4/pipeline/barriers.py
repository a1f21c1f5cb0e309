"""Named barriers: ids, and names for reports. Id 0 belongs to `__syncthreads`."""

from __future__ import annotations

from typing import NamedTuple


class NamedBarrier(NamedTuple):
    """A barrier in hardware; one for each consumer warpgroup takes the following ids, too."""

    id: int
    name: str  # in the past tense, as those of edges
    producer: str  # role that arrives
    consumer: str  # role that waits


# while dV and dK leave through shared memory
GRADIENTS_WRITTEN = NamedBarrier(1, "gradients_written", "compute", "compute")
# nothing reads tensor memory any more
TMEM_DRAINED = NamedBarrier(2, "tmem_drained", "correction", "mma")
# the threads of one of Hopper's consumer warpgroups
WARPGROUP_ARRIVED = NamedBarrier(3, "warpgroup_arrived", "attend", "attend")
# the turn of one of Hopper's consumer warpgroups to issue MMAs
TURN_HANDED_ON = NamedBarrier(8, "turn_handed_on", "attend", "attend")
