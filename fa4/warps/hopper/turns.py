"""Ping-pong of Hopper's warpgroups: one issues its MMAs while the others do their softmax."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute

from fa4.pipeline import barriers
from fa4.plan_hopper import HopperPlan
from fa4.warps.hopper.fragments import warpgroup_index


@dataclass(frozen=True)
class Turns:
    """Warpgroups issue in a fixed order, once per key block of the CTA; nothing if not planned.

    Of the barriers TURN_HANDED_ON, the t-th is for warpgroup t, which waits there, and the one
    before it, which arrives.
    """

    plan: HopperPlan

    def open(self) -> None:
        """Give the first turn to warpgroup 0."""
        if self.plan.tuning.ping_pong:
            self._arrive_from(self.plan.q_tiles - 1)

    def take(self) -> None:
        """Wait for this warpgroup's turn."""
        if self.plan.tuning.ping_pong:
            barrier = barriers.TURN_HANDED_ON.id + warpgroup_index()
            cute.arch.barrier(barrier_id=barrier, number_of_threads=256)

    def hand_on(self) -> None:
        """Let the next warpgroup issue."""
        if self.plan.tuning.ping_pong:
            self._arrive_at_next()

    def close(self) -> None:
        """Take the turn that nobody needs: a barrier must not be left half complete."""
        if self.plan.tuning.ping_pong:
            self._take_from(0)

    @cute.jit
    def _arrive_from(self, warpgroup: cutlass.Constexpr[int]) -> None:
        if warpgroup_index() == warpgroup:
            self._arrive_at_next()

    @cute.jit
    def _take_from(self, warpgroup: cutlass.Constexpr[int]) -> None:
        if warpgroup_index() == warpgroup:
            self.take()

    @cute.jit
    def _arrive_at_next(self) -> None:
        following = warpgroup_index() + 1
        following = following if following < self.plan.q_tiles else 0
        barrier = barriers.TURN_HANDED_ON.id + following
        cute.arch.barrier_arrive(barrier_id=barrier, number_of_threads=256)
