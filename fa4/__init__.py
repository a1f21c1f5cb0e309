"""Attention kernels for NVIDIA Blackwell and Hopper, one readable file per warp role.

    out = fa4.flash_attn_func(q, k, v, causal=True)

Public names load on first use, so that `import fa4` and the pure-Python parts (`fa4.problem`,
`fa4.plan`) need neither torch nor the compiler.
"""

from fa4._lazy import lazy
from fa4._version import __version__

_HOME = {
    "flash_attn_func": "api",
    "can_implement": "api",
    "Support": "api",
    "emulator": "emulator",
    "on_hopper": "on_hopper",
}

__all__ = ["__version__", *_HOME]


__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
