"""What compiled host code calls instead of the CUDA runtime while it runs in the emulator.

`EmulatedRuntime` keeps the handles (libraries, kernels) and passes each launch to `on_launch`. No
exception may cross the C frames in between, so an error becomes a CUDA error code on its way out
and is kept in `pending`, from where the hook raises it again as it was.
Signatures: CUDA Runtime API; `cuda_dialect_*` and `CuteDSLRT_*` as declared by the DSL's host code.
"""

import ctypes
import itertools
import threading
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint, c_void_p
from dataclasses import dataclass

from fa4.emulator import fatbin

_ERROR_KIND = b"RuntimeError"
_CUDA_ERROR_UNKNOWN = 999
_ATTRIBUTE_BYTES, _ATTRIBUTE_VALUE = 72, 8
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6  # cudaLaunchAttributeID

# Never reached while a kernel runs, but possibly after the interpreter has gone: pure machine code.
RETURN_ZERO = (
    "cuda_dialect_unload_library_once",
    "_cudaLibraryUnload",
    "_cuLibraryUnload",
    "_cudaSetDevice",
    "_cudaFuncSetAttribute",
    "_cudaKernelSetAttributeForDevice",
    "_cudaDeviceSynchronize",
    "_cudaStreamSynchronize",
)
# The rest of what the DSL's runtime library exports to host code.
_REFUSED = (
    *("_cudaLaunchKernel", "_cuTensorMapEncodeTiled", "_cudaGetDeviceProperties"),
    *("_cudaMalloc", "_cudaMallocAsync", "_cudaMallocHost", "_cudaMallocManaged"),
    *("_cudaFree", "_cudaFreeAsync", "_cudaFreeHost"),
    *("_cudaMemcpy", "_cudaMemcpyAsync", "_cudaMemset", "_cudaMemsetAsync"),
    *("_cudaLibraryGetGlobal", "_cudaLibraryGetKernelCount", "_cudaLibraryGetManaged"),
    *("_cudaLibraryGetUnifiedFunction", "_cudaLibraryLoadFromFile"),
    *("_cuLibraryLoadData", "_cuLibraryGetKernel", "_cuLibraryGetGlobal", "_cuLibraryGetModule"),
    *("_cuLibraryGetKernelCount", "_cuLibraryGetManaged", "_cuLibraryGetUnifiedFunction"),
    "_cuLibraryLoadFromFile",
    *("_cudaEventCreate", "_cudaEventRecord", "_cudaEventElapsedTime", "_cudaEventDestroy"),
    *("_cudaStreamCreate", "_cudaStreamDestroy", "_cudaStreamWaitEvent", "_cudaStreamAddCallback"),
    *("_cudaStreamBeginCapture", "_cudaStreamEndCapture"),
    *("_cudaGraphInstantiate", "_cudaGraphLaunch", "_cudaGraphDestroy", "_cudaGraphExecDestroy"),
    *("_cudaProfilerStart", "_cudaProfilerStop"),
    "CuteDSLRT_TVMFFISetRaisedCudaLaunchError",
)


class _Dim3(ctypes.Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))

    def as_tuple(self) -> tuple[int, int, int]:
        return self.x, self.y, self.z


class _LaunchConfig(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = (
        ("grid", _Dim3),
        ("block", _Dim3),
        ("smem_bytes", c_size_t),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )

    def cluster(self) -> tuple[int, int, int]:
        value = self._value(_CLUSTER_DIMENSION)
        return _Dim3.from_address(value).as_tuple() if value else (1, 1, 1)

    def dependent(self) -> bool:
        value = self._value(_PROGRAMMATIC_SERIALIZATION)
        return bool(value and c_int.from_address(value).value)

    def _value(self, number: int) -> int:
        """Address of an attribute's value; 0 without it."""
        for i in range(self.attribute_count):
            attribute = self.attributes + i * _ATTRIBUTE_BYTES
            if c_uint.from_address(attribute).value == number:
                return attribute + _ATTRIBUTE_VALUE
        return 0


@dataclass(frozen=True)
class Kernel:
    """A kernel handle: the entry's name and the PTX of the library it came from."""

    name: str
    ptx: str


@dataclass(frozen=True)
class RawLaunch:
    """One `cudaLaunchKernelEx`: `arguments` is the address of an array of parameter addresses.

    `stream` is the CUDA stream's handle, which only tells launches apart. `dependent`: whether
    the grid may begin before the one before it has ended.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    arguments: int
    stream: int = 0
    dependent: bool = False


class _Thread(threading.local):
    pending: BaseException | None = None


class EmulatedRuntime:
    """The entry points as methods; `callbacks()` makes them callable from C."""

    def __init__(
        self, on_launch: Callable[[RawLaunch], None], attribute: Callable[[int], int]
    ) -> None:
        """`attribute` answers cudaDeviceGetAttribute for a cudaDeviceAttr number."""
        self._thread = _Thread()
        self._on_launch = on_launch
        self._attribute = attribute
        self._handles: dict[int, str | Kernel] = {}
        self._next_handle = itertools.count(0x1000, 0x10)

    @property
    def pending(self) -> BaseException | None:
        """What went wrong in this thread's running call."""
        return self._thread.pending

    @pending.setter
    def pending(self, error: BaseException | None) -> None:
        self._thread.pending = error

    def callbacks(self) -> dict[str, object]:
        """ctypes callback by symbol name."""
        pointer, out = POINTER(c_void_p), POINTER(c_int)
        load = (self._load, pointer, c_void_p, *[c_void_p] * 2, c_uint, *[c_void_p] * 2, c_uint)
        entries = {
            "_cudaLibraryLoadData": load,
            "_cudaLibraryGetKernel": (self._get_kernel, pointer, c_void_p, c_char_p),
            "_cuKernelGetAttribute": (self._kernel_attribute, out, c_int, c_void_p, c_int),
            "_cudaGetDevice": (self._zero, out),
            "_cudaGetDeviceCount": (self._one, out),
            "_cuDeviceGet": (self._zero, out, c_int),
            "_cudaDeviceGetAttribute": (self._device_attribute, out, c_int, c_int),
            "_cudaOccupancyMaxActiveBlocksPerMultiprocessor": (
                *(self._one, out),
                *(c_void_p, c_int, c_size_t),
            ),
            "_cudaLaunchKernelEx": (self._launch, POINTER(_LaunchConfig), c_void_p, c_void_p),
            "cuda_dialect_init_library_once": (self._init_once, pointer, *[c_void_p] * 3),
            "cuda_dialect_assert_success": (self._check, c_int),
            "cuda_dialect_print_on_error": (self._check, c_int),
            "CuteDSLRT_TVMFFISetRaisedCudaError": (self._raise_in_tvm_ffi, c_void_p, c_int32),
        }
        made = {
            name: CFUNCTYPE(c_int, *types)(self._guard(function))
            for name, (function, *types) in entries.items()
        }
        made["cuda_dialect_get_error_name"] = CFUNCTYPE(c_void_p, c_int)(self._error_name)
        for name in _REFUSED:
            made[name] = CFUNCTYPE(c_int)(self._guard(self._refusal(name)))
        return made

    def _guard(self, function: Callable[..., None]) -> Callable[..., int]:
        def call(*args: object) -> int:
            try:
                function(*args)
            except BaseException as error:  # also KeyboardInterrupt: it must not end in C
                if self.pending is None:
                    self.pending = error
                return _CUDA_ERROR_UNKNOWN
            return 0

        return call

    def _new_handle(self, value: str | Kernel) -> int:
        handle = next(self._next_handle)
        self._handles[handle] = value
        return handle

    def _load(self, library: object, code: int, *_options: int) -> None:
        ptx = fatbin.ptx_at(code)
        if ptx is None:
            raise RuntimeError(
                "this function was compiled without keeping its PTX, which is what the emulator "
                "runs: compile it inside `with fa4.emulator.session():` or "
                "`with fa4.emulator.keep_ptx():`"
            )
        library[0] = self._new_handle(ptx)

    def _get_kernel(self, kernel: object, library: int, name: bytes) -> None:
        ptx = self._handles.get(library or 0)
        if not isinstance(ptx, str):
            raise RuntimeError(f"library handle {library!r} was not loaded in the emulator")
        kernel[0] = self._new_handle(Kernel(name.decode(), ptx))

    def _launch(self, config: object, kernel: int, arguments: int) -> None:
        entry = self._handles.get(kernel or 0)
        if not isinstance(entry, Kernel):
            raise RuntimeError(f"kernel handle {kernel!r} was not loaded in the emulator")
        c = config.contents
        grid, block = c.grid.as_tuple(), c.block.as_tuple()
        where = c.stream or 0, c.dependent()
        self._on_launch(RawLaunch(entry, grid, block, c.cluster(), c.smem_bytes, arguments, *where))

    def _device_attribute(self, value: object, attribute: int, _device: int) -> None:
        value[0] = self._attribute(attribute)

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"host code saw error {code} of an emulated CUDA call")

    def _zero(self, value: object, *_args: int) -> None:
        value[0] = 0

    _kernel_attribute = _zero  # static shared memory, registers: the DSL's kernels report none

    def _one(self, value: object, *_args: int) -> None:
        value[0] = 1

    def _init_once(self, slot: object, init: int, load: int, set_error: int) -> None:
        """TVM-FFI host code: load the library at the first call, then keep its handle in `slot`."""
        if slot[0]:
            return
        library = c_void_p()
        made = CFUNCTYPE(c_int, POINTER(c_void_p))(init)(ctypes.byref(library))
        if made == 0 and load:
            made = CFUNCTYPE(c_int, POINTER(c_void_p), c_int)(load)(ctypes.byref(library), 0)
        if made != 0:
            CFUNCTYPE(None, c_char_p, c_char_p)(set_error)(_ERROR_KIND, self._message())
            raise RuntimeError("the kernel library could not be loaded in the emulator")
        slot[0] = library.value

    def _raise_in_tvm_ffi(self, set_error: int, _code: int) -> None:
        """Tell TVM-FFI that an error is set; the hook puts `pending` in its place."""
        parts = (c_char_p * 1)(self._message())
        CFUNCTYPE(None, c_char_p, POINTER(c_char_p), c_int32)(set_error)(_ERROR_KIND, parts, 1)

    def _message(self) -> bytes:
        return str(self.pending).encode()

    def _error_name(self, _code: int) -> int:
        return ctypes.cast(_ERROR_NAME, c_void_p).value

    @staticmethod
    def _refusal(name: str) -> Callable[[], None]:
        def refuse() -> None:
            raise NotImplementedError(
                f"host code called {name.lstrip('_')}, which the emulator does not offer: "
                "allocate and copy outside of the compiled host function"
            )

        return refuse


_ERROR_NAME = c_char_p(b"cudaErrorUnknown")
