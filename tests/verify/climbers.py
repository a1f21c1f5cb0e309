"""Stands in for `ladder.climb` in processes of their own: what happens is the kernel's mask."""

import os
import signal

from fa4.variants import Variant
from fa4.verify.ladder import Effort, Outcome


def climb(variant: Variant, rungs: tuple[str, ...], effort: Effort) -> dict[str, Outcome]:
    """causal: the GPU is lost; window: the process dies; otherwise fine. `runs` is the process."""
    if variant.mask == "window":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"emulated": Outcome(os.getpid(), lost=variant.mask == "causal")}
