"""Runs kernels that the CuTe DSL compiled for Blackwell (sm_100a) or Hopper (sm_90a) on a CPU.

    with fa4.emulator.session(schedule="priority", seed=3) as emulated:
        compiled(...)
    print(emulated.launches)

Importing this package imports neither cutlass nor torch: each public name is loaded on first use.
"""

from importlib import import_module

_HOME = {
    "session": "sessions",
    "Session": "sessions",
    "current_session": "sessions",
    "LaunchRecord": "sessions",
    "as_cuda": "tensors",
    "keep_ptx": "keep",
    "EmulatorError": "errors",
    "DeadlockError": "errors",
    "CheckError": "checker.findings",
    "Finding": "checker.findings",
    "Labels": "labels",
    "BarrierLabel": "labels",
    "Observer": "observe",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
