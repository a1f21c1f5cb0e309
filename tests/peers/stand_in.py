"""Lets third-party packages run unmodified in an emulator session on CPU tensors."""

import contextlib
import sys
from collections.abc import Iterator

import pytest
import torch

import fa4.emulator
from fa4.emulator import mma
from fa4.emulator.patching import environment, replaced

_CAPABILITY = {"sm_100a": (10, 0), "sm_90a": (9, 0)}
_seen = {"arch": ""}  # of the latest session


def require(module: str) -> None:
    """Skip the calling test module when an optional package is missing."""
    reason = f"needs the `peers` extra: {module} is not installed"
    pytest.importorskip("triton", reason=reason)  # quack imports it and does not declare it
    pytest.importorskip(module.split(".")[0], reason=reason)


@contextlib.contextmanager
def emulated_peers(arch: str = "sm_100a", **options: object) -> Iterator[fa4.emulator.Session]:
    """A session in which torch calls every tensor a CUDA tensor and names a GPU of `arch`."""
    if arch != _seen["arch"]:
        _forget_gpu()
        _seen["arch"] = arch
    emulated = fa4.emulator.session(arch=arch, **options)
    capability = _CAPABILITY[arch]
    with contextlib.ExitStack() as stack:
        for name, value in _target(arch, emulated.device.num_sms).items():
            stack.enter_context(environment(name, value))
        stack.enter_context(replaced(torch.Tensor, "is_cuda", lambda _: property(lambda t: True)))
        stack.enter_context(
            replaced(torch.cuda, "get_device_capability", lambda _: lambda device=None: capability)
        )
        yield stack.enter_context(emulated)


def _forget_gpu() -> None:
    """Empty the packages' caches: a process has one kind of GPU for them."""
    for module in [name for name in sys.modules if name.split(".")[0] in ("flash_attn", "quack")]:
        for name, value in vars(sys.modules[module]).items():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
            if hasattr(value, "compile_cache"):
                value.compile_cache.clear()
            if isinstance(value, dict) and name.endswith("_cache"):
                value.clear()


def _target(arch: str, num_sms: int) -> dict[str, str]:
    """Which GPU the packages select a kernel for, in their own variables."""
    short = arch.rstrip("a")
    return {
        "FLASH_ATTENTION_ARCH": short,
        "FLASH_ATTENTION_NUM_SMS": str(num_sms),
        "QUACK_ARCH": short.removeprefix("sm_"),
        "QUACK_CACHE_ENABLED": "0",
    }


@contextlib.contextmanager
def operand_off_by_five_percent() -> Iterator[None]:
    """Make the emulated tensor core read its left operand 5 % too large."""
    with replaced(mma.Product, "_left", lambda left: lambda job, cta: left(job, cta) * 1.05):
        yield


def relative_error(value: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference over that of `expected`."""
    difference = value.float() - expected.float()
    return (difference.square().mean() / expected.float().square().mean()).sqrt().item()
