"""CPU tensors for kernels that expect CUDA memory: the emulator's global memory is host memory."""

import ctypes
import dataclasses
import threading
from collections.abc import Iterable

_CPU, _CUDA = 1, 2  # DLDeviceType
_DEVICE_TYPE_OFFSET, _DEVICE_ID_OFFSET = 8, 12  # in DLTensor, behind the data pointer

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class CudaView:
    """A tensor in host memory that tells every DLPack consumer it lies on cuda:0.

    Shares the memory and keeps `tensor` alive.
    """

    def __init__(self, tensor: object) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, 0

    def __dlpack__(self, **_kwargs: object) -> object:
        source = self.tensor
        if getattr(source, "requires_grad", False):
            source = source.detach()
        capsule = source.__dlpack__()
        managed = _capsule_pointer(capsule, b"dltensor")
        ctypes.c_int32.from_address(managed + _DEVICE_TYPE_OFFSET).value = _CUDA
        ctypes.c_int32.from_address(managed + _DEVICE_ID_OFFSET).value = 0
        return capsule


def is_on_cpu(value: object) -> bool:
    """Whether `value` is a DLPack tensor in host memory."""
    if not hasattr(value, "__dlpack__") or isinstance(value, CudaView):
        return False
    return value.__dlpack_device__()[0] == _CPU


def as_cuda(tensor: object) -> CudaView:
    """View a CPU tensor (torch, numpy, anything with DLPack) as one on cuda:0.

    Use it where a tensor is given to the DSL outside of a session, for instance to compile:
    `cute.runtime.from_dlpack(fa4.emulator.as_cuda(t))`. Inside a session it happens by itself.
    Raises `ValueError` for a tensor that is not in host memory.
    """
    if isinstance(tensor, CudaView):
        return tensor
    if not is_on_cpu(tensor):
        raise ValueError(f"as_cuda takes a tensor in host memory, got {_describe(tensor)}")
    return CudaView(tensor)


def _describe(value: object) -> str:
    device = getattr(value, "device", None)
    return f"{type(value).__name__} on {device}" if device is not None else repr(value)[:80]


def extent(
    address: int, shape: Iterable[int], strides: Iterable[int], bits: int
) -> tuple[int, int] | None:
    """(lowest address, bytes) that a strided view touches; None when it has no elements.

    `strides` count elements of `bits` bits and may be 0 or negative.
    """
    low = high = 0
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return None
        reach = (size - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    first = address + (low * bits) // 8
    return first, -(-((high + 1 - low) * bits) // 8)


def torch_extent(tensor: object) -> tuple[int, int] | None:
    """`extent` of a torch tensor."""
    bits = 8 * tensor.element_size()
    return extent(tensor.data_ptr(), tensor.shape, tensor.stride(), bits)


def refuse_cuda(value: object) -> None:
    """Raise `ValueError` for a tensor that really lies in GPU memory."""
    if getattr(getattr(value, "device", None), "type", None) == "cuda":
        raise ValueError(
            f"an emulator session runs on host memory, got {_describe(value)}: pass value.cpu()"
        )


class Arguments(threading.local):
    """Host memory that the arguments of this thread's running call cover, as (address, bytes)."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self._depth = 0

    def begin(self, already_marshalled: bool) -> None:
        """Start a call, possibly inside another; its arguments may have been noted before."""
        if self._depth == 0 and not already_marshalled:
            self.ranges = []
        self._depth += 1

    def end(self) -> None:
        """Finish a call."""
        self._depth -= 1
        if self._depth == 0:
            self.ranges = []

    def note_cute(self, tensor: object) -> None:
        """Add the extent of a CuTe runtime tensor."""
        bits = tensor.element_type.width
        self._add(extent(tensor.data_ptr, tensor.shape, tensor.stride, bits))

    def for_tvm_ffi(self, value: object) -> object:
        """The value as TVM-FFI host code wants it: tensors on cuda:0, also inside containers."""
        import tvm_ffi

        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [f.name for f in dataclasses.fields(value) if f.init]
            return dataclasses.replace(
                value, **{name: self.for_tvm_ffi(getattr(value, name)) for name in names}
            )
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.for_tvm_ffi(item) for item in value))
        if isinstance(value, list | tuple):
            return type(value)(self.for_tvm_ffi(item) for item in value)
        if hasattr(value, "__tvm_ffi_object__"):
            value = value.__tvm_ffi_object__()
        if not hasattr(value, "__dlpack__"):
            return value
        refuse_cuda(value)
        view = tvm_ffi.from_dlpack(CudaView(value) if is_on_cpu(value) else value)
        self._add(extent(view.data_ptr(), view.shape, view.strides, view.dtype.bits))
        return view

    def _add(self, found: tuple[int, int] | None) -> None:
        if found is not None:
            self.ranges.append(found)
