"""The Blackwell forward kernel: allocates and dispatches to roles, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.memory import SmemAllocator

from fa4.numerics.scales import Scales
from fa4.pipeline.check import Ledger
from fa4.pipeline.pipes import Pipes, build_pipes, init_barriers
from fa4.plan_blackwell import BlackwellPlan
from fa4.tiles.bundles import TmaTensors, carve
from fa4.tiles.layouts import smem_layouts
from fa4.warps.correction import Correction
from fa4.warps.epilogue import Epilogue
from fa4.warps.load import Load
from fa4.warps.mma import Mma
from fa4.warps.softmax import Softmax
from fa4.warps.work import Work


@dataclass(frozen=True)
class Forward:
    """One CTA per SM, 16 warps; each warp runs the role that the plan gives it."""

    plan: BlackwellPlan

    @cute.kernel
    def kernel(self, tma: TmaTensors, mLSE: cute.Tensor, work: Work, scales: Scales) -> None:
        """See host.py for the arguments."""
        plan, roles = self.plan, self.plan.roles
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        smem_map = plan.smem()
        base = SmemAllocator().allocate(smem_map.nbytes, byte_alignment=1024)
        ledger = Ledger()
        pipes = build_pipes(plan, Pipes, base, ledger)
        layouts = smem_layouts(plan)
        smem = carve(plan, layouts, base)
        tmem_address = cute.recast_ptr(base + smem_map.tiles["tmem_address"], dtype=Int32)

        load = Load(plan)
        if warp == roles["load"].first:
            with cute.arch.elect_one():
                load.prefetch(tma)
                init_barriers(pipes, plan)
            cute.arch.mbarrier_init_fence()
        if warp == roles["mma"].first:
            cute.arch.alloc_tmem(plan.tmem().allocated, tmem_address)
            cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)

        if warp < roles["softmax"].end:
            cute.arch.setmaxregister_increase(roles["softmax"].registers)
            Softmax(plan).run(smem, tmem, mLSE, pipes.seen_by("softmax"), work, scales)
        elif warp < roles["correction"].end:
            cute.arch.setmaxregister_decrease(roles["correction"].registers)
            correction = Correction(plan)
            correction.run(smem, tmem, pipes.seen_by("correction"), work)
            correction.drain()
        else:
            cute.arch.setmaxregister_decrease(roles["mma"].registers)
            if warp == roles["mma"].first:
                mma = Mma(plan)
                with cute.arch.elect_one():
                    mma.run(smem, tmem, pipes.seen_by("mma"), work)
                mma.drain()
                cute.arch.dealloc_tmem(tmem, plan.tmem().allocated)
            if warp == roles["load"].first:
                load.run(tma, smem, pipes.seen_by("load"), work)
            if warp == roles["epilogue"].first:
                Epilogue(plan).run(tma, smem, pipes.seen_by("epilogue"), work)
        ledger.check(plan.edges())
