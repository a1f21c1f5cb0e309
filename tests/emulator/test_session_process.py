"""Sessions across processes: caches on disk, several at once, no compiler, a light import."""

import os
import subprocess
import sys

import pytest
import torch

import fa4.emulator
from tests.emulator import session_kernels as kernels
from tests.emulator.test_session import PATHS, vectors

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

LOAD = """
import sys, torch, cutlass.cute as cute, fa4.emulator
from tests.emulator import session_kernels as kernels
path, tvm_ffi = sys.argv[1], sys.argv[2] == "True"
x, y = torch.arange(1., 101.), torch.zeros(100)
def no_compile(*args, **kwargs):
    raise AssertionError("compiled")
from cutlass.base_dsl.compiler import Compiler
Compiler.compile = no_compile
with fa4.emulator.session(schedule="late") as emulated:
    function = cute.runtime.load_module(path, enable_tvm_ffi=tvm_ffi)["kept"]
    kernels.call(function, x, y, tvm_ffi)
assert torch.equal(y, 2 * x) and len(emulated.launches) == 1
try:
    kernels.call(function, fa4.emulator.as_cuda(x), fa4.emulator.as_cuda(y), tvm_ffi)
except RuntimeError as error:
    assert "call it inside" in str(error), error
else:
    raise AssertionError("launched outside of a session")
print("done")
"""

COMPILE_AND_RUN = """
import torch, fa4.emulator
from tests.emulator import session_kernels as kernels
x, y = torch.arange(1., 101.), torch.zeros(100)
with fa4.emulator.session():
    kernels.call(kernels.compile_for(kernels.triple, x, y, False), x, y, False)
assert torch.equal(y, 3 * x)
print("done")
"""

LIGHT_IMPORT = """
import sys, fa4.emulator
fa4.emulator.session()
assert not {"cutlass", "torch", "tvm_ffi"} & set(sys.modules), sorted(sys.modules)
print("done")
"""


def start(script, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ROOT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.endswith("done\n"), output


def export(compiled, folder, tvm_ffi):
    path = folder / "kept.o"
    if tvm_ffi:
        compiled.export_to_c(str(path), function_name="kept")
    else:
        compiled.export_to_c(str(folder), "kept", "kept")
    return path


@pytest.mark.parametrize("tvm_ffi", PATHS)
def test_an_object_file_runs_in_two_other_processes_at_once(tvm_ffi, tmp_path):
    x, y = vectors()
    with fa4.emulator.session():
        compiled = kernels.compile_for(kernels.double, x, y, tvm_ffi)
    path = export(compiled, tmp_path, tvm_ffi)
    others = [start(LOAD, path, tvm_ffi) for _ in range(2)]
    for other in others:
        finish(other)


@pytest.mark.parametrize("tvm_ffi", PATHS)
def test_an_object_file_in_the_process_that_compiled_it(tvm_ffi, tmp_path):
    import cutlass.cute as cute

    x, y = vectors()
    with fa4.emulator.session() as emulated:
        compiled = kernels.compile_for(kernels.double, x, y, tvm_ffi)
        path = export(compiled, tmp_path, tvm_ffi)
        loaded = cute.runtime.load_module(str(path), enable_tvm_ffi=tvm_ffi)["kept"]
        kernels.call(loaded, x, y, tvm_ffi)
        assert torch.equal(y, 2 * x)
        y.zero_()
        kernels.call(compiled, x, y, tvm_ffi)
        assert torch.equal(y, 2 * x)
    assert len(emulated.launches) == 2


def test_an_object_loaded_outside_of_sessions_stays_native(tmp_path):
    import cutlass.cute as cute

    x, y = vectors()
    with fa4.emulator.keep_ptx():
        views = map(fa4.emulator.as_cuda, (x, y))
        compiled = kernels.compile_for(kernels.double, *views, False)
    loaded = cute.runtime.load_module(str(export(compiled, tmp_path, False)))["kept"]
    with fa4.emulator.session(), pytest.raises(RuntimeError, match="inside the session"):
        kernels.call(loaded, x, y, False)


def test_the_driver_never_sees_an_emulated_library(monkeypatch, tmp_path):
    import gc

    import cuda.bindings.runtime as cuda_runtime
    import cutlass.cute as cute

    unloaded = []
    monkeypatch.setattr(cuda_runtime, "cudaLibraryUnload", unloaded.append)
    x, y = vectors()
    with fa4.emulator.session():
        compiled = kernels.compile_for(kernels.double, x, y, False)
        kernels.call(compiled, x, y, False)
        path = export(compiled, tmp_path, False)
        loaded = cute.runtime.load_module(str(path))["kept"]
        kernels.call(loaded, x, y, False)
    del compiled, loaded
    gc.collect()
    assert not unloaded


def test_no_c_compiler_is_needed():
    finish(start(COMPILE_AND_RUN, PATH="/nonexistent", CC="/nonexistent/cc"))


def test_importing_is_light():
    finish(start(LIGHT_IMPORT))


def test_the_example_agrees_with_torch():
    script = os.path.join(ROOT, "examples", "emulate_your_kernel.py")
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("warp-instructions") == 5
