"""The main kernel of Hopper's backward: allocates and dispatches to roles, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from fa4.numerics.scales import GradientScales
from fa4.pipeline.check import Ledger
from fa4.pipeline.pipes import HopperBackwardPipes, build_pipes, init_barriers
from fa4.plan_hopper_backward import HopperBackwardPlan
from fa4.tiles.backward_bundles import BackwardRows, BackwardTma
from fa4.tiles.hopper_backward_bundles import hopper_backward_carve
from fa4.tiles.hopper_backward_layouts import hopper_backward_layouts
from fa4.tiles.tile_queue import tile_slots
from fa4.warps.backward.work import BackwardWork
from fa4.warps.hopper.backward.compute import HopperBackwardCompute
from fa4.warps.hopper.backward.load import HopperBackwardLoad
from fa4.warps.hopper.backward.reduce import HopperBackwardReduce


@dataclass(frozen=True)
class HopperBackward:
    """One CTA per SM takes blocks of keys: dK and dV in registers, dQ added up in global memory."""

    plan: HopperBackwardPlan

    @cute.kernel
    def kernel(
        self, tma: BackwardTma, rows: BackwardRows, work: BackwardWork, scales: GradientScales
    ) -> None:
        """See host_backward.py for the arguments."""
        plan, roles, smem_map = self.plan, self.plan.roles, self.plan.smem()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        ledger = Ledger()
        base = SmemAllocator().allocate(smem_map.nbytes, byte_alignment=1024)
        pipes = build_pipes(plan, HopperBackwardPipes, base, ledger)
        smem = hopper_backward_carve(plan, hopper_backward_layouts(plan), base)
        slots = tile_slots(base + smem_map.tiles["sTile"])
        if warp == roles["load"].first:
            with cute.arch.elect_one():
                init_barriers(pipes, plan)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        if warp >= roles["compute"].first:
            cute.arch.setmaxregister_increase(roles["compute"].registers)
            HopperBackwardCompute(plan).run(
                tma, smem, slots, pipes.seen_by("compute"), work, scales
            )
        else:
            cute.arch.setmaxregister_decrease(roles["load"].registers)
            if warp == roles["load"].first:
                HopperBackwardLoad(plan).run(tma, smem, rows, slots, pipes.seen_by("load"), work)
            if (warp >= roles["reduce"].first) & (warp < roles["reduce"].end):
                HopperBackwardReduce(plan).run(smem, rows, slots, pipes.seen_by("reduce"), work)
        ledger.check(plan.edges())
