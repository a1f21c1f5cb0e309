"""The main kernel of Blackwell's backward: allocates and dispatches to roles, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.memory import SmemAllocator

from fa4.numerics.scales import GradientScales
from fa4.pipeline.check import Ledger
from fa4.pipeline.pipes import BackwardPipes, build_pipes, init_barriers
from fa4.plan_backward_blackwell import BlackwellBackwardPlan
from fa4.tiles.backward_bundles import BackwardRows, BackwardTma
from fa4.tiles.backward_layouts import carve_backward
from fa4.warps.backward.compute import BackwardCompute
from fa4.warps.backward.load import BackwardLoad
from fa4.warps.backward.mma import BackwardMma
from fa4.warps.backward.reduce import BackwardReduce
from fa4.warps.backward.work import BackwardWork


@dataclass(frozen=True)
class Backward:
    """One CTA per block of keys: dK and dV in tensor memory, dQ added up in global memory.

    Each CTA works alone. The form with two CTAs to one MMA (M = 256, half of dS exchanged through
    distributed shared memory, half the traffic of dQ) is not built.
    """

    plan: BlackwellBackwardPlan

    @cute.kernel
    def kernel(
        self, tma: BackwardTma, rows: BackwardRows, work: BackwardWork, scales: GradientScales
    ) -> None:
        """See host_backward.py for the arguments."""
        plan, roles = self.plan, self.plan.roles
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        smem_map = plan.smem()
        base = SmemAllocator().allocate(smem_map.nbytes, byte_alignment=1024)
        ledger = Ledger()
        pipes = build_pipes(plan, BackwardPipes, base, ledger)
        smem = carve_backward(plan, base)
        tmem_address = cute.recast_ptr(base + smem_map.tiles["tmem_address"], dtype=Int32)

        if warp == roles["load"].first:
            with cute.arch.elect_one():
                init_barriers(pipes, plan)
            cute.arch.mbarrier_init_fence()
        if warp == roles["mma"].first:
            cute.arch.alloc_tmem(plan.tmem().allocated, tmem_address)
            cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)

        if warp < roles["compute"].end:
            cute.arch.setmaxregister_increase(roles["compute"].registers)
            BackwardCompute(plan).run(tma, smem, tmem, pipes.seen_by("compute"), work, scales)
        elif warp < roles["reduce"].end:
            cute.arch.setmaxregister_increase(roles["reduce"].registers)
            BackwardReduce(plan).run(smem, tmem, rows, pipes.seen_by("reduce"), work)
        else:
            cute.arch.setmaxregister_decrease(roles["mma"].registers)
            if warp == roles["mma"].first:
                mma, mma_pipes = BackwardMma(plan), pipes.seen_by("mma")
                with cute.arch.elect_one():
                    mma.run(smem, tmem, mma_pipes, work)
                mma.drain(mma_pipes, work)
                cute.arch.dealloc_tmem(tmem, plan.tmem().allocated)
            if warp == roles["load"].first:
                BackwardLoad(plan).run(tma, smem, rows, pipes.seen_by("load"), work)
        ledger.check(plan.edges())
