"""Keeps the PTX of what the CuTe DSL compiles, inside the compiled module itself."""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from fa4.emulator import fatbin
from fa4.emulator.patching import PROCESS_STATE, replaced

_DUMP_OPTION = re.compile(r"dump-ptx-path=('[^']*'|\S+)")
_CHIP = re.compile(r"cubin-chip='?sm_(\d+)")
_PASS = "cute-to-nvvm{"  # the DSL's lowering pass, which writes the PTX when asked to
_MARK = "fa4.keep_ptx"
_open = 0  # contexts, in all threads
_patch = contextlib.ExitStack()


@contextlib.contextmanager
def keep_ptx() -> Iterator[None]:
    """Compile functions that can run natively and in the emulator.

    What the CuTe DSL compiles in this context carries its PTX in the fat binary beside the cubin,
    also through `export_to_c` and `cute.runtime.load_module`. `session()` includes it.
    """
    global _open
    with PROCESS_STATE:
        if not _open:
            _install()
        _open += 1
    try:
        yield
    finally:
        with PROCESS_STATE:
            _open -= 1
            if not _open:
                _patch.close()


def _install() -> None:
    from cutlass.base_dsl.compiler import Compiler
    from cutlass.cutlass_dsl import CuTeDSL

    # for good: the DSL's hooks that end again are those of one thread
    CuTeDSL._get_dsl().register_trace_finalize_hook(_mark)
    _patch.enter_context(replaced(Compiler, "compile", _compile_keeping_ptx))


def _mark(_dsl: object, module: object, _function_name: str) -> None:
    """Change the module, and so the DSL's cache key: a cached one may lack its PTX."""
    from cutlass._mlir import ir

    if _open:
        module.operation.attributes[_MARK] = ir.UnitAttr.get(module.context)


def _compile_keeping_ptx(original: Callable[..., object]) -> Callable[..., object]:
    def compile_module(
        self: object, module: object, pipeline: str, *args: object, **kwargs: object
    ) -> object:
        if _PASS not in pipeline:
            return original(self, module, pipeline, *args, **kwargs)
        with tempfile.TemporaryDirectory(prefix="fa4-ptx-") as folder:
            wanted = _DUMP_OPTION.search(pipeline)
            ours = _DUMP_OPTION.sub("", pipeline)
            ours = ours.replace(_PASS, f"{_PASS}dump-ptx-path='{folder}/kernel' ")
            compiled = original(self, module, ours, *args, **kwargs)
            files = list(Path(folder).iterdir())
            if files:
                _embed(compiled, files[0].read_text(), int(_CHIP.search(pipeline)[1]))
            if files and wanted:
                path = wanted[1].strip("'")
                shutil.copy(files[0], path + files[0].name.removeprefix("kernel"))
            return compiled

    return compile_module


def _embed(module: object, ptx: str, arch: int) -> None:
    """Add the PTX to the constant of the compiled module that holds its fat binary."""
    from cutlass._mlir import ir

    binaries = [op for op in module.body.operations if fatbin.is_fat_binary(_constant_bytes(op))]
    if len(binaries) != 1:
        raise NotImplementedError(
            f"expected one kernel binary in the compiled module, found {len(binaries)}"
        )
    (binary,) = binaries
    container = fatbin.with_ptx(_constant_bytes(binary), ptx, arch)
    with module.context:
        binary.attributes["value"] = ir.StringAttr.get(container)
        array = ir.Type.parse(f"!llvm.array<{len(container)} x i8>")
        binary.attributes["global_type"] = ir.TypeAttr.get(array)


def _constant_bytes(operation: object) -> bytes:
    if operation.name != "llvm.mlir.global" or "value" not in operation.attributes:
        return b""
    return getattr(operation.attributes["value"], "value_bytes", b"")
