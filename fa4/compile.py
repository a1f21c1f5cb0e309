"""Plan -> callable, compiled once per machine: an in-process cache over one on disk.

On disk a compiled kernel is one object file (host code, cubin and PTX), named after a digest of
everything that its code depends on: the plan, this package's kernel sources, the DSL's installed
distributions (one of them brings ptxas) and the machine that the host code is for.
Set FA4_CACHE_DIR to move the cache from ~/.cache/fa4.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distributions
from pathlib import Path

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass.cute.runtime import load_module

from fa4.emulator import current_session, keep_ptx
from fa4.emulator.hook import compile_target
from fa4.emulator.patching import PROCESS_STATE
from fa4.host import ForwardHost
from fa4.host_backward import BackwardHost
from fa4.host_base import argument_pointer
from fa4.plan_backward_base import BackwardPlan
from fa4.plan_base import BasePlan

logger = logging.getLogger("fa4")

ENTRY = "fa4"  # prefix of the exported host function
PACKAGE = Path(__file__).parent
COMPILER = "nvidia-cutlass-dsl"  # and -libs-base, -libs-cu12, ...
# What compiled host functions and kernels are made from: all that both hosts import, and this.
FOLDERS = ("numerics", "pipeline", "tiles", "warps")
MODULES = (
    *("arguments", "backward", "compile", "forward", "hopper", "hopper_backward"),
    *("host", "host_backward", "host_base"),
    *("plan_backward_base", "plan_backward_blackwell", "plan_base", "plan_blackwell"),
    *("plan_hopper", "plan_hopper_backward"),
    "problem",
)


HostFunction = Callable[[bytes, int], int]
"""(argument block, CUDA stream) -> cudaError_t; the block is not kept."""


@dataclass(frozen=True)
class Artifacts:
    """What the compilers made of a plan."""

    kernel_name: str
    ptx: str
    cubin: bytes


@cache
def host_function(plan: BasePlan, emulated: bool) -> HostFunction:
    """The host function of a plan, forward or backward: compiled if it must be, its kernels loaded.

    What is loaded stays bound to where it was loaded, so there is one for each place. emulated:
    load it inside `fa4.emulator.session` and call it inside `Hook.call`; otherwise outside of any
    session, and it is loaded to all CUDA devices. Raises ValueError for the latter inside one.
    """
    with PROCESS_STATE:
        here = None if emulated else current_session()
        if here is not None:
            raise ValueError(
                f"{plan.name} cannot be loaded to a GPU while {here.name} is open, to which it "
                "would stay bound; call outside of the session."
            )
        function = load(plan)
        function.to()
        entry = c_interface(function.engine, function.function_name)
        entry.owner = function  # unloads its kernels when it goes
        return entry


def load(plan: BasePlan) -> Callable[..., None]:
    """The DSL's view of the plan's object file, which is made first if it is not there."""
    path = object_file(plan)
    with PROCESS_STATE:
        if not path.exists():
            compile_to(plan, path)
    return load_module(str(path))[ENTRY]


def c_interface(engine: object, name: str) -> HostFunction:
    """A host function in a JIT engine, called as C would: the DSL's own way costs microseconds.

    MLIR gives `f` the symbol `_mlir_ciface_f`, which takes its arguments as C does. The DSL calls
    it through one more, the `name` here, that unpacks an array of pointers to arguments.
    """
    address = engine.lookup(name.removeprefix("_mlir_"))
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p)(address)


def object_file(plan: BasePlan) -> Path:
    """Where the compiled plan lies on disk, or will."""
    digest = hashlib.sha256("\n".join((plan.key(), fingerprint(PACKAGE))).encode()).hexdigest()
    return cache_dir() / f"{plan.name}_{digest[:24]}.o"


def cache_dir() -> Path:
    """FA4_CACHE_DIR, or ~/.cache/fa4."""
    chosen = os.environ.get("FA4_CACHE_DIR")
    return Path(chosen) if chosen else Path.home() / ".cache" / "fa4"


@cache
def artifacts(plan: BasePlan) -> Artifacts:
    """PTX and cubin of a plan, with line information (which does not change the machine code)."""
    with tempfile.TemporaryDirectory(prefix="fa4-artifacts-") as folder:
        options = f"--keep-ptx --keep-cubin --generate-line-info --dump-dir={folder}"
        compiled = _compile(plan, options)
        return Artifacts(plan.name, compiled.__ptx__, compiled.__cubin__)


def _compile(plan: BasePlan, options: str) -> Callable[..., None]:
    plan.check()  # one that somebody tuned by hand came past plan_forward
    logger.info("compiling %s", plan.name)
    with PROCESS_STATE, compile_target(plan.arch), keep_ptx():
        host = BackwardHost if isinstance(plan, BackwardPlan) else ForwardHost
        return cute.compile(host(plan), argument_pointer(8), cuda.CUstream(0), options=options)


def compile_to(plan: BasePlan, path: Path) -> None:
    """Compile and publish in one rename: no process ever sees half a file."""
    compiled = _compile(plan, "--generate-line-info")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="compiling-") as folder:
        compiled.export_to_c(folder, "kernel", ENTRY)
        os.replace(Path(folder) / "kernel.o", path)


@cache
def fingerprint(package: Path) -> str:
    """Changes whenever compiled code might: sources of the kernel, compiler, and host machine."""
    made_by = platform.machine(), *compiler(), source_digest(package)
    return hashlib.sha256("\n".join(made_by).encode()).hexdigest()


def compiler() -> list[str]:
    """Name and version of each installed distribution of the DSL, such as those for CUDA 12 or 13,
    whose ptxas are different ones. Raises PackageNotFoundError where its version is not known."""
    installed = [(name, each.version) for each in distributions() if (name := each.name)]
    names = ((re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in installed)
    found = sorted(f"{name} {version}" for name, version in names if name.startswith(COMPILER))
    if not found:
        raise PackageNotFoundError(COMPILER)
    return found


def source_digest(package: Path) -> str:
    """Of the files of the package that compiled code depends on."""
    digest = hashlib.sha256()
    for path in kernel_sources(package):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def kernel_sources(package: Path) -> list[Path]:
    """The files of the package that compiled code depends on, in a fixed order."""
    files = {package / f"{module}.py" for module in MODULES}
    for folder in FOLDERS:
        files.update((package / folder).rglob("*.py"))
    return sorted(files)
