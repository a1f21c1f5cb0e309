"""Runs kernels compiled for Blackwell (sm_100a) on a Hopper GPU (H100, H200).

    with fa4.on_hopper.session(defer=True, poison=True):
        out = fa4.flash_attn_func(q, k, v)

The kernel's PTX is rewritten to sm_90a: tensor memory lies in global memory, its MMA is done by
four more warps of each CTA, packed float32 arithmetic is split; TMA, mbarriers, named barriers,
warps and shared memory are the GPU's own. Read rewrite.py first.
"""

from fa4._lazy import lazy

_HOME = {
    "session": "sessions",
    "Session": "sessions",
    "LaunchRecord": "sessions",
    "Modes": "modes",
    "NotCovered": "instructions",
}

__all__ = sorted(_HOME)


__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return __all__
