"""Kernels whose PTX says, in comments, which action on which edge an instruction belongs to.

The shipped kernels have no such comments; they do not change the machine code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import cutlass.cute as cute

from fa4 import compile as compilation
from fa4.pipeline.check import Ledger
from fa4.pipeline.pipes import Pipe

ACTIONS = ("wait", "acquire", "expect", "commit", "release")


@dataclass(frozen=True)
class Mark:
    """The n-th place in the traced kernel where an action is done on an edge."""

    edge: str
    action: str
    n: int

    def __str__(self) -> str:
        return f"// site {self.edge} {self.action} {self.n} ."


@contextmanager
def marked_sites() -> Iterator[None]:
    """Compile kernels with a comment in front of every action; each trace has its own ledger."""
    counts: Counter[tuple[Ledger, str, str]] = Counter()

    def marked(action: str, original: object) -> object:
        def call(pipe: Pipe, *args: object, **options: object) -> object:
            key = (pipe.ledger, pipe.edge.name, action)
            cute.arch.inline_ptx(str(Mark(*key[1:], counts[key])))
            counts[key] += 1
            return original(pipe, *args, **options)

        return call

    with mock.patch.multiple(Pipe, **{a: marked(a, getattr(Pipe, a)) for a in ACTIONS}):
        yield


@contextmanager
def separate_cache(folder: str) -> Iterator[None]:
    """Keep marked kernels out of the cache of shipped ones."""
    with mock.patch.dict("os.environ", {"FA4_CACHE_DIR": folder}):
        compilation.host_function.cache_clear()
        yield
    compilation.host_function.cache_clear()
