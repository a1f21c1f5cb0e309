"""Attention kernels for NVIDIA Blackwell and Hopper, one readable file per warp role.

    out = fa4.flash_attn_func(q, k, v, causal=True)

Public names load on first use, so that `import fa4` and the pure-Python parts (`fa4.problem`,
`fa4.plan`) need neither torch nor the compiler.
"""

from importlib import import_module

from fa4._version import __version__

_HOME = {
    "flash_attn_func": "fa4.api",
    "can_implement": "fa4.api",
    "Support": "fa4.api",
}
_SUBMODULES = ("emulator", "on_hopper")

__all__ = ["__version__", *_HOME, *_SUBMODULES]


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"fa4.{name}")
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fa4' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
