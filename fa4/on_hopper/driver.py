"""Loads rewritten PTX and launches it, by the CUDA driver, whose compiler is the only one needed.

Handing PTX to the driver needs neither ptxas nor NVRTC on the user's machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import cuda.bindings.driver as cuda

_LOG_BYTES = 1 << 14
_FIRST_SLEEP, _LONGEST_SLEEP = 20e-6, 5e-3  # seconds between looks at a running kernel


def load(ptx: str, entry: str, smem_bytes: int) -> cuda.CUfunction:
    """Compile PTX for the current device. Raises RuntimeError with the compiler's log."""
    log = bytearray(_LOG_BYTES)
    options = {
        cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER: log,
        cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: len(log),
    }
    error, module = cuda.cuModuleLoadDataEx(
        ptx.encode() + b"\0", len(options), list(options), list(options.values())
    )
    if error != cuda.CUresult.CUDA_SUCCESS:
        text = log.split(b"\0", 1)[0].decode(errors="replace").strip()
        raise RuntimeError(
            f"the driver could not compile {entry} for Hopper ({error.name}): {text}"
        )
    function = _checked(cuda.cuModuleGetFunction(module, entry.encode()), f"looking up {entry}")
    maximum = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(
        cuda.cuFuncSetAttribute(function, maximum, smem_bytes),
        f"giving {entry} {smem_bytes} bytes of shared memory",
    )
    return function


def launch(
    function: cuda.CUfunction,
    shape: tuple[tuple[int, int, int], int],
    smem_bytes: int,
    stream: int,
    arguments: int,
) -> None:
    """Start a kernel: `shape` is the grid and the threads of a CTA, `arguments` an address."""
    grid, threads = shape
    _checked(
        cuda.cuLaunchKernel(
            *(function, *grid, threads, 1, 1, smem_bytes, cuda.CUstream(stream), arguments, 0)
        ),
        "launching the kernel",
    )


def wait(stream: int, limit: float, describe: Callable[[], str]) -> float:
    """Wait for all work of a stream. Returns the seconds it took.

    Raises TimeoutError after `limit` seconds and RuntimeError if a kernel failed.
    """
    begin, pause = time.monotonic(), _FIRST_SLEEP
    while True:
        (error,) = cuda.cuStreamQuery(cuda.CUstream(stream))
        seconds = time.monotonic() - begin
        if error == cuda.CUresult.CUDA_SUCCESS:
            return seconds
        if error != cuda.CUresult.CUDA_ERROR_NOT_READY:
            raise RuntimeError(f"{describe()} failed on the GPU with {error.name}")
        if seconds > limit:
            raise TimeoutError(
                f"{describe()} still runs after {limit:g} s: a wait that never ends, or a time "
                "limit too short for its size. A running kernel cannot be stopped: end the process"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_SLEEP)


def _checked(result: tuple, what: str) -> object:
    error, *values = result
    if error != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{what} failed with {error.name}")
    return values[0] if values else None
