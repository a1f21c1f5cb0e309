"""Epilogue role: one warp stores finished O tiles with TMA."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.pipeline import PipelineUserType, make_pipeline_state

from fa4.pipeline.pipes import Pipes
from fa4.plan_blackwell import Q_TILES, BlackwellPlan
from fa4.tiles.bundles import SmemTensors, TmaTensors
from fa4.warps.work import Work


@dataclass(frozen=True)
class Epilogue:
    """O from shared to global memory; TMA clips rows and columns past the tensor's end.

    Waits: o_written. Signals: the release of o_written.
    Owns: no TMEM columns. Registers: plan.roles["epilogue"].
    """

    plan: BlackwellPlan

    @cute.jit
    def run(self, tma: TmaTensors, smem: SmemTensors, pipes: Pipes, work: Work) -> None:
        """Store every tile of this CTA."""
        staging = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.o_stages)
        first_tile, end, step = work.tiles()
        for number in cutlass.range(first_tile, end, step, unroll=1):
            tile = work.schedule.decode(number)
            gO = cute.local_tile(
                tma.o.tensor[None, None, tile.head, tile.batch], self.plan.o_box, (None, 0)
            )
            # (copy, stage), (copy, query tile)
            tOsO, tOgO = tma.o.partition(smem.o, cute.group_modes(gO, 0, 2))
            for t in cutlass.range_constexpr(Q_TILES):
                pipes.o_written.wait(staging.index, staging.phase)
                gO_tile = tOgO[None, tile.m * Q_TILES + t]
                with cute.arch.elect_one():  # the DSL elects a lane for TMA loads only
                    cute.copy(tma.o.atom, tOsO[None, staging.index], gO_tile)
                    cute.arch.cp_async_bulk_commit_group()
                # the staging buffer is free once TMA has read it; global memory may come later
                cute.arch.cp_async_bulk_wait_group(0, read=True)
                pipes.o_written.release(staging.index)
                staging.advance()
        cute.arch.cp_async_bulk_wait_group(0, read=False)
