"""Finds nvdisasm and runs it on a cubin."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_HOW = (
    "install the wheel nvidia-cuda-nvdisasm (extra `sass`), set CUDA_HOME, or put nvdisasm on PATH"
)


class DisassemblerMissingError(RuntimeError):
    """No nvdisasm on this machine; the message says how to get one."""


@lru_cache
def find_nvdisasm() -> str | None:
    """Path of nvdisasm: $CUDA_HOME/bin, PATH, the nvidia-cuda-nvdisasm wheel, triton's wheel."""
    for candidate in _candidates():
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    return None


def disassemble(cubin: bytes) -> str:
    """SASS listing of `cubin` with source lines and inline chains (`nvdisasm -c -gi`).

    Raises DisassemblerMissingError without the tool, RuntimeError with its message when it fails.
    """
    tool = find_nvdisasm()
    if tool is None:
        raise DisassemblerMissingError(f"nvdisasm not found: {_HOW}")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", "-gi", file.name], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvdisasm failed with code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin" / "nvdisasm"
    if on_path := shutil.which("nvdisasm"):
        yield Path(on_path)
    for root in _package_folders("nvidia"):
        yield from sorted(root.glob("*/bin/nvdisasm"), reverse=True)
    for root in _package_folders("triton"):
        yield root / "backends" / "nvidia" / "bin" / "nvdisasm"


def _package_folders(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
