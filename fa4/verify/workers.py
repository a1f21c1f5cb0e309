"""Kernels climb in processes of their own, and one that lost its GPU takes no further kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from multiprocessing import get_context

from fa4.variants import Variant
from fa4.verify import ladder
from fa4.verify.ladder import Effort, Outcome

Outcomes = dict[str, Outcome]
Climbed = dict[Variant, Outcomes]
DIED = "process"  # stands for the rung, which nobody knows then


def climb_all(
    chosen: Sequence[Variant], rungs: tuple[str, ...], effort: Effort, jobs: int
) -> Iterator[tuple[Variant, Outcomes]]:
    """The outcomes of each kernel as they come; kernels that no process is left for are missing.

    A kernel that loses the GPU ends its process: each one after it would fail on the dead context.
    """
    if jobs == 1 or len(chosen) == 1:
        for variant in chosen:
            outcomes = ladder.climb(variant, rungs, effort)
            yield variant, outcomes
            if lost(outcomes):
                return
        return
    todo, running = list(reversed(chosen)), {}
    with ExitStack() as stack:

        def next_one(pool: ProcessPoolExecutor) -> None:
            if todo:
                with suppress(BrokenProcessPool):  # it died between two kernels
                    task = pool.submit(ladder.climb, todo[-1], rungs, effort)
                    running[task] = pool, todo.pop()

        # a pool for each process: when one of its processes dies, a pool gives up all of its tasks
        for _ in range(min(jobs, len(chosen))):
            next_one(stack.enter_context(_one_process()))
        while running:
            for task in wait(running, return_when=FIRST_COMPLETED).done:
                pool, variant = running.pop(task)
                outcomes = _outcomes(task)
                yield variant, outcomes
                if not lost(outcomes):
                    next_one(pool)
                elif DIED not in outcomes:
                    with suppress(BrokenProcessPool):
                        pool.submit(os._exit, 1)  # at once: a running kernel never ends


def lost(outcomes: Outcomes) -> bool:
    """Whether the process that climbed can climb no further."""
    return any(outcome.lost for outcome in outcomes.values())


def _outcomes(task: Future[Outcomes]) -> Outcomes:
    try:
        return task.result()
    except BrokenProcessPool as error:
        return {DIED: Outcome(1, f"it died: {error}", lost=True)}


def _one_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_one_thread)


def _one_thread() -> None:
    """Processes share the cores: more threads in each would only take turns."""
    import torch

    torch.set_num_threads(1)
