"""The Hopper forward kernel: allocates and dispatches to roles, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32
from cutlass.memory import SmemAllocator

from fa4.numerics.scales import Scales
from fa4.pipeline.check import Ledger
from fa4.pipeline.pipes import HopperPipes, build_pipes, init_barriers
from fa4.plan_hopper import HopperPlan
from fa4.tiles.bundles import TmaTensors
from fa4.tiles.hopper_bundles import hopper_carve
from fa4.tiles.hopper_layouts import hopper_layouts
from fa4.tiles.tile_queue import END, SLOTS, tile_queue
from fa4.warps.hopper.attend import Attend
from fa4.warps.hopper.load import HopperLoad
from fa4.warps.work import Work


@dataclass(frozen=True)
class HopperForward:
    """One CTA per SM: a load warp in a warpgroup of its own, and warpgroups that attend."""

    plan: HopperPlan

    @cute.kernel
    def kernel(
        self,
        tma: TmaTensors,
        mLSE: cute.Tensor,
        counter: cute.Pointer,
        work: Work,
        scales: Scales,
    ) -> None:
        """See host.py for the arguments."""
        plan, roles = self.plan, self.plan.roles
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem_map, ledger = plan.smem(), Ledger()
        base = SmemAllocator().allocate(smem_map.nbytes, byte_alignment=1024)
        pipes = build_pipes(plan, HopperPipes, base, ledger)
        smem = hopper_carve(plan, hopper_layouts(plan), base)
        queue = tile_queue(base + smem_map.tiles["sTile"], counter, work.schedule.num_tiles)
        if warp == roles["load"].first:
            for slot in range(SLOTS):
                queue.take_request(slot)
                queue.number[slot] = Int32(END)  # is read before the first tile comes back
            with cute.arch.elect_one():
                init_barriers(pipes, plan)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        if warp >= roles["attend"].first:
            cute.arch.setmaxregister_increase(roles["attend"].registers)
            Attend(plan).run(tma, smem, queue, mLSE, pipes.seen_by("attend"), work, scales)
        else:
            cute.arch.setmaxregister_decrease(roles["load"].registers)
            if warp == roles["load"].first:
                HopperLoad(plan).run(tma, smem, queue, pipes.seen_by("load"), work)
        ledger.check(plan.edges())
