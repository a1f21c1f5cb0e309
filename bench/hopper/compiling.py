"""Compiles into the cache, by as many processes as there are cores."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from fa4 import compile
from fa4.plan_base import BasePlan


def compile_plans(plans: Iterable[BasePlan]) -> list[str]:
    """Make the object files that are not there; returns what went wrong."""
    with processes() as pool:
        return [fault for fault in pool.map(compile_plan, plans) if fault]


def processes() -> ProcessPoolExecutor:
    """A process per core; none is a fork, since the parent may hold a GPU."""
    return ProcessPoolExecutor(mp_context=get_context("spawn"))


def compile_plan(plan: BasePlan) -> str:
    """Returns what went wrong."""
    try:
        if not compile.object_file(plan).exists():
            compile.compile_to(plan, compile.object_file(plan))
    except Exception as error:  # for example a tuning that does not fit
        return f"{plan.name}: {type(error).__name__}: {str(error)[:300]}"
    return ""
