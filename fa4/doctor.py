"""`fa4 doctor`: what is installed, what the machine has, what will run where."""

from __future__ import annotations

import argparse
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from fa4._version import __version__

REQUIRED = ("nvidia-cutlass-dsl", "torch", "cuda-python", "numpy")
OPTIONAL = {
    "apache-tvm-ffi": "needed by flash-attn-4 and quack-kernels; extra `peers`",
    "flash-attn-4": "tests of third-party kernels; extra `peers`",
    "quack-kernels": "tests of third-party kernels; extra `peers`",
    "triton": "needed by flash-attn-4; extra `peers`",
    "nvidia-cuda-nvdisasm": "SASS counts of `fa4 inspect`; extra `sass`",
    "matplotlib": "pictures of `fa4 profile`, plots of the benchmarks; extra `plot`",
}


@dataclass(frozen=True)
class Finding:
    """One line of the report. `fault` marks what keeps fa4 from working."""

    name: str
    text: str
    fault: bool = False


def doctor_main(argv: list[str]) -> int:
    """Print the report; returns 1 if a required part is missing or the compiler fails."""
    parser = argparse.ArgumentParser(prog="fa4 doctor", description=__doc__)
    parser.add_argument(
        "--no-compile", action="store_true", help="skip the trial compilation (a few seconds)"
    )
    arguments = parser.parse_args(argv)
    print(f"fa4 {__version__}, Python {platform.python_version()}, {platform.platform()}")
    sections = {
        "Packages": packages(),
        "Toolchain": toolchain(not arguments.no_compile),
        "Devices": devices(),
    }
    faults = 0
    for title, findings in sections.items():
        print(f"\n{title}")
        for finding in findings:
            print(f"{'!' if finding.fault else ' '} {finding.name:22} {finding.text}")
            faults += finding.fault
    print(f"\n{faults} fault(s), marked with !" if faults else "\nAll required parts are in place.")
    return 1 if faults else 0


def packages() -> Iterator[Finding]:
    """Installed versions of what fa4 needs and can use."""
    for name in REQUIRED:
        found = _version(name)
        yield Finding(name, found or "missing; run `make install`", fault=found is None)
    for name, purpose in OPTIONAL.items():
        yield Finding(name, _version(name) or f"not installed ({purpose})")


def toolchain(compiling: bool) -> Iterator[Finding]:
    """Disassembler and compiler; the assembler (ptxas) is built into the CuTe DSL's library."""
    from fa4.profile.disassembler import find_nvdisasm

    yield Finding("nvdisasm", find_nvdisasm() or "not found (install the extra `sass`)")
    if not compiling:
        yield Finding("compiler", "not tried")
        return
    try:
        yield _trial_compilation()
    except Exception as error:  # whatever the compiler raises belongs into the report
        yield Finding("compiler", f"{type(error).__name__}: {error}", fault=True)


def devices() -> Iterator[Finding]:
    """Each device of torch and whether fa4 has a kernel for it."""
    import torch

    from fa4 import api

    try:
        yield Finding("cpu", f"emulator, {api.emulated_arch()} (FA4_EMULATE_ARCH selects)")
    except ValueError as error:
        yield Finding("cpu", str(error), fault=True)
    gpus = torch.cuda.device_count()
    if gpus == 0:
        yield Finding("cuda", "no GPU that torch can use")
    for index in range(gpus):
        device = torch.device("cuda", index)
        try:
            text = f"{torch.cuda.get_device_name(device)}: native, {api.native_arch(device)}"
        except NotImplementedError as error:
            text = str(error)
        yield Finding(str(device), text)


def _trial_compilation() -> Finding:
    """Compile the plan of the demo for what it would run on; ptxas names itself in the cubin."""
    from fa4.compile import artifacts
    from fa4.demo import demo_arch, demo_plan, native_gpu

    start, arch = time.perf_counter(), demo_arch(native_gpu())
    cubin = artifacts(demo_plan(arch)).cubin
    seconds = time.perf_counter() - start
    tool = re.search(rb"Cuda compilation tools, release [\d.]+, (V[\d.]+)", cubin)
    named = tool.group(1).decode() if tool else "version not in the cubin"
    return Finding("compiler", f"works: {arch} forward in {seconds:.1f} s, ptxas {named}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
