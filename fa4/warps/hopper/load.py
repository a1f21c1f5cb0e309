"""Load role on Hopper: one warp assigns work tiles and brings their Q, K and V in with TMA."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.pipeline import PipelineState, PipelineUserType, make_pipeline_state

from fa4.pipeline.pipes import HopperPipes
from fa4.plan_hopper import HopperPlan
from fa4.tiles.bundles import Source, TmaTensors
from fa4.tiles.hopper_bundles import HopperSmem
from fa4.tiles.scheduler import WorkTile
from fa4.tiles.tile_queue import END, EXACT, FRESH, SLOTS, TileQueue
from fa4.warps.work import Work


@dataclass(frozen=True)
class HopperLoad:
    """Order: K of the last key block, Q of every warpgroup; then K of a block, V of the one before.

    That is the order in which stages become free: S = Q K^T of a block is issued before P V of the
    one before.

    Waits: the release of tile_assigned, q_loaded, k_loaded, v_loaded.
    Signals: tile_assigned, q_loaded, k_loaded, v_loaded. Registers: plan.roles["load"].
    """

    plan: HopperPlan

    @cute.jit
    def run(
        self,
        tma: TmaTensors,
        smem: HopperSmem,
        queue: TileQueue,
        pipes: HopperPipes,
        work: Work,
    ) -> None:
        """Feed the warpgroups until no tile is left, new or to be done again."""
        slot = make_pipeline_state(PipelineUserType.Consumer, SLOTS)
        ring = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.kv_stages)
        q_ring = make_pipeline_state(PipelineUserType.Consumer, self.plan.tuning.q_stages)
        fresh, _, _ = cute.arch.block_idx()
        mode = Int32(FRESH)
        while mode != END:
            pipes.tile_assigned.acquire(slot.index, slot.phase)
            number = queue.number[slot.index]
            mode = Int32(EXACT)
            if queue.take_request(slot.index) == 0:
                number = fresh
                mode = Int32(FRESH)
                if fresh >= queue.num_tiles:
                    # The tile before may still ask for a second time: wait for its verdict.
                    pipes.tile_assigned.acquire(slot.index ^ 1, slot.phase ^ slot.index)
                    number = queue.number[slot.index ^ 1]
                    mode = Int32(EXACT)
                    if queue.take_request(slot.index ^ 1) == 0:
                        mode = Int32(END)
            cute.arch.sync_warp()
            tile = work.schedule.decode(number)
            queue.put(slot.index, number, tile, mode)
            pipes.tile_assigned.commit(slot.index)
            slot.advance()
            if mode != END:
                rings = (q_ring, ring)
                q_ring, ring, asked = self._load_tile(
                    tma, smem, queue, pipes, work, tile, rings, mode
                )
                if mode == FRESH:
                    fresh = self._answer(queue, asked)

    @cute.jit
    def _ask(self, queue: TileQueue) -> Int32:
        asked = Int32(0)
        if cutlass.const_expr(self.plan.tuning.persistent):
            asked = queue.counter.ask()
        return asked

    @cute.jit
    def _answer(self, queue: TileQueue, asked: Int32) -> Int32:
        number = queue.num_tiles
        if cutlass.const_expr(self.plan.tuning.persistent):
            number = queue.answer(asked)
        return number

    @cute.jit
    def _load_tile(
        self,
        tma: TmaTensors,
        smem: HopperSmem,
        queue: TileQueue,
        pipes: HopperPipes,
        work: Work,
        tile: WorkTile,
        rings: tuple[PipelineState, PipelineState],
        mode: Int32,
    ) -> tuple[PipelineState, PipelineState, Int32]:
        plan, asked = self.plan, Int32(0)
        q_ring, ring = rings
        first, last = work.blocks(tile.m)
        gQ = cute.local_tile(tma.q.tensor[None, None, tile.head, tile.batch], plan.q_box, (None, 0))
        gK = cute.local_tile(
            tma.k.tensor[None, None, tile.head_kv, tile.batch], plan.k_box, (None, 0)
        )
        gV = cute.local_tile(
            tma.v.tensor[None, None, tile.head_kv, tile.batch], plan.v_box, (0, None)
        )
        q = Source(tma.q, *tma.q.partition(smem.q, cute.group_modes(gQ, 0, 2)))
        k = Source(tma.k, *tma.k.partition(smem.k, cute.group_modes(gK, 0, 2)))
        v = Source(tma.v, *tma.v.partition(smem.v, cute.group_modes(gV, 0, 2)))
        behind = ring.clone()
        for i in cutlass.range(last - first + 1, unroll=1):
            block = last - 1 - i
            if block >= first:
                # Not sooner: a CTA that holds its next tile early keeps it from one that is idle
                if block == first and mode == FRESH:
                    asked = self._ask(queue)
                pipes.k_loaded.acquire(ring.index, ring.phase)
                k.load(block, ring.index, pipes.k_loaded.expect(ring.index, plan.k_block_bytes))
            if i == 0:  # after K, whose stage is free sooner
                for t in cutlass.range_constexpr(plan.q_tiles):
                    buffer = q_ring.index * plan.q_tiles + t
                    pipes.q_loaded.acquire(buffer, q_ring.phase)
                    mbarrier = pipes.q_loaded.expect(buffer, plan.q_tile_bytes)
                    q.load(tile.m * plan.q_tiles + t, buffer, mbarrier)
            else:
                pipes.v_loaded.acquire(behind.index, behind.phase)
                mbarrier = pipes.v_loaded.expect(behind.index, plan.v_block_bytes)
                v.load(block + 1, behind.index, mbarrier)
            behind = ring.clone()
            ring.advance()
        q_ring.advance()
        return q_ring, behind, asked
