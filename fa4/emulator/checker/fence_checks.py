"""Fences: what they make visible to other proxies, to tensor memory and to other threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .clocks import ASYNC, GENERIC, GRID_BEFORE, PENDING, PUBLIC, TENSOR

if TYPE_CHECKING:
    from ..team import Team
    from .barrier_checks import MbarrierCarrier
    from .checker import ClusterChecker

_THREADS = ("fence.acq_rel", "fence.sc", "fence.acquire", "fence.release", "membar")


class FenceChecks:
    """Called for every fence instruction of the kernel."""

    def __init__(self, checker: ClusterChecker) -> None:
        self.checker, self.clocks = checker, checker.clocks
        self._unfenced: dict[int, list[MbarrierCarrier]] = {}
        self._inits: dict[int, int] = {}  # by warp

    def fence(self, w: Team, kind: str, mask: np.ndarray | None) -> None:
        """`kind`: the opcode."""
        slots = self.checker.slots(w, mask)
        if kind.startswith("tcgen05.fence::before"):
            self.before_thread_sync(slots)
        elif kind.startswith("tcgen05.fence::after"):
            self.after_thread_sync(slots)
        elif kind.startswith("fence.proxy.async"):
            # a fence of global memory alone is taken for one of both: a miss, not a false alarm
            known = self.clocks.warps
            known[slots, ASYNC] = np.maximum(known[slots, ASYNC], known[slots, GENERIC])
            self.clocks.step(slots)
            self._publish_barriers(slots)
        elif kind.startswith("fence.mbarrier_init"):
            self._publish_barriers(slots)
        elif kind == "griddepcontrol.wait":
            self.clocks.warps[slots, GENERIC, GRID_BEFORE] = 1
            self.checker.launch.global_shadow.waited = True
        elif kind.startswith(_THREADS):
            self.checker.locations.fence(slots)

    def initialised(self, slot: int, carrier: MbarrierCarrier) -> None:
        self._unfenced.setdefault(slot, []).append(carrier)
        carrier.number = self._inits[slot] = self._inits.get(slot, 0) + 1

    def _publish_barriers(self, slots: list[int]) -> None:
        """The inits of these warps so far: even a relaxed arrival passes them on, as PUBLIC."""
        for slot in slots:
            for carrier in self._unfenced.pop(slot, ()):
                carrier.fenced = True
                self.clocks.warps[slot, [TENSOR, PUBLIC], carrier.inits] = carrier.number

    def before_thread_sync(self, slots: list[int]) -> None:
        self.clocks.warps[slots, PUBLIC] = self.clocks.warps[slots, TENSOR]

    def after_thread_sync(self, slots: list[int]) -> None:
        known = self.clocks.warps
        known[slots, TENSOR] = np.maximum(known[slots, TENSOR], known[slots, PENDING])
