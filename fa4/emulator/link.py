"""Links host code of the CuTe DSL against the emulator, and builds twins of compiled functions.

Listing our library is not enough: once a process has used the DSL, its real runtime library is in
the global scope, and the JIT linkers prefer it. So the names that an object file imports get
another first letter, and the shim exports those.
"""

import copy
import ctypes
import struct
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType

_TWIN = "_fa4_emulated_twin"
_PREFIX = "fa4"
LETTER = "9"  # of the emulator's names; another runtime in the same process needs its own
_TARGET = "__i_target_func"  # the global through which a TVM-FFI keyword wrapper calls its target
_SHT_SYMTAB = 2


def emulated_name(name: str, letter: str = LETTER) -> str:
    """Name of a runtime function in a redirected object: of the same length, so in place."""
    return letter + name[1:]


def redirect(image: bytes, names: Iterable[str], letter: str = LETTER) -> bytes:
    """The ELF object with its references to `names` changed to `emulated_name`."""
    if image[:5] != b"\x7fELF\x02":
        raise ValueError("expected a 64-bit ELF object: the emulator loads .o files only")
    (sections,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, sections + size * i) for i in range(count)]
    changed = bytearray(image)
    for header in headers:
        if header[1] == _SHT_SYMTAB:
            start, length = headers[header[6]][4:6]  # sh_link names the symbols' string table
            strings = bytes(changed[start : start + length])
            for name in names:
                old, new = name.encode() + b"\0", emulated_name(name, letter).encode() + b"\0"
                strings = strings.replace(old, new)
            changed[start : start + length] = strings
    return bytes(changed)


class Linker:
    """Loads objects against the shared object at `library`, which exports emulated `names`."""

    def __init__(self, library: str, names: Iterable[str]) -> None:
        self._library = library
        self._names = tuple(names)

    def engine(self, image: bytes) -> object:
        """A JIT engine holding the object, linked against the emulator."""
        from cutlass._mlir._mlir_libs._cutlass_ir._execution_engine import BinaryExecutionEngine

        return BinaryExecutionEngine(redirect(image, self._names), [self._library], True)

    def twin_of(self, function: object) -> object:
        """What to call in a session instead of `function`; made at the first call and kept on it.

        Raises `RuntimeError` for a function that was loaded outside of a session, because only its
        native link is known.
        """
        twin = getattr(function, _TWIN, None)
        if twin is None:
            if function.ir_module is None:
                raise RuntimeError(
                    f"{function.function_name} was loaded outside of an emulator session and is "
                    "bound to the CUDA driver: call cute.runtime.load_module inside the session"
                )
            is_tvm_ffi = hasattr(function, "_create_tvm_ffi_function")
            twin = self._tvm_ffi_twin(function) if is_tvm_ffi else self._jit_twin(function)
            setattr(function, _TWIN, twin)
        return twin

    def _jit_twin(self, function: object) -> object:
        engine = self.engine(function.dump_to_object(_PREFIX))
        entry = engine.lookup(f"_mlir_{_PREFIX}__mlir_ciface_{function.function_name}")
        twin = copy.copy(function)
        twin.engine = engine
        twin.capi_func = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(entry)
        twin.prefix, twin.load_from_binary = _PREFIX, True
        twin.jit_module = twin._default_executor = None
        twin._executor_lock = threading.RLock()
        bind(twin)
        return twin

    def _tvm_ffi_twin(self, function: object) -> object:
        import tvm_ffi

        with tempfile.TemporaryDirectory(prefix="fa4-link-") as folder:
            path = Path(folder) / "function.o"
            function.export_to_c(str(path), function_name=_PREFIX)
            engine = self.engine(path.read_bytes())
        entry = engine.lookup(f"__tvm_ffi_{_PREFIX}")
        linked = tvm_ffi.Function.__from_extern_c__(entry, keep_alive_object=engine)
        wrapper = getattr(function, "_kwargs_wrapper", None)
        return linked if wrapper is None else _with_target(wrapper, linked)


def bind(function: object) -> None:
    """Declare a function that is already linked against the emulator to be its own twin."""
    load = function._load_cuda_library

    def load_without_unloading() -> list:
        load()
        return []  # the real cudaLibraryUnload must never see one of our handles

    setattr(function, _TWIN, function)
    vars(function).update(_load_cuda_library=load_without_unloading, num_devices=1)


def _with_target(wrapper: FunctionType, target: object) -> FunctionType:
    """The keyword wrapper, calling `target`."""
    if _TARGET not in wrapper.__globals__:
        raise RuntimeError("this version of apache-tvm-ffi builds keyword wrappers differently")
    names = {**wrapper.__globals__, _TARGET: target}
    made = FunctionType(
        wrapper.__code__, names, wrapper.__name__, wrapper.__defaults__, wrapper.__closure__
    )
    made.__kwdefaults__ = wrapper.__kwdefaults__
    return made
