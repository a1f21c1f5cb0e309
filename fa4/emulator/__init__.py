"""Runs kernels that the CuTe DSL compiled for Blackwell (sm_100a) or Hopper (sm_90a) on a CPU.

    with fa4.emulator.session(schedule="priority", seed=3) as emulated:
        compiled(...)
    print(emulated.launches)

Importing this package imports neither cutlass nor torch: each public name is loaded on first use.
"""

from fa4._lazy import lazy

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


__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return __all__
