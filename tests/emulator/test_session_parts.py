"""The session's parts alone: the shared object, the fat binary, tensors in host memory."""

import ctypes
import struct
from pathlib import Path

import pytest
import torch

from fa4.emulator import cuda_runtime, fatbin, link, patching, shim
from fa4.emulator.tensors import CudaView, as_cuda, extent, is_on_cpu, torch_extent

PTX = ".version 8.8\n.target sm_100a\n.visible .entry f() { ret; }\n"


def test_shim_jumps_to_python_and_returns_zero():
    sum_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)
    callbacks = {"add": sum_type(lambda a, b: a + b), "multiply": sum_type(lambda a, b: a * b)}
    library = shim.Shim(callbacks, ["nothing"])
    loaded = ctypes.CDLL(library.path)
    assert [loaded.add(3, 4), loaded.multiply(3, 4), loaded.nothing(5)] == [7, 12, 0]
    with pytest.raises(AttributeError):
        _ = loaded.divide


def test_shim_for_aarch64():
    image = shim.build(["f", "g"], ["h"], "aarch64")
    assert struct.unpack_from("<H", image, 18) == (183,)
    # The first stub, by LLVM's assembler: ldr x16, #65024; br x16.
    stub = bytes.fromhex("10f00758 00021fd6")
    assert shim._jump_aarch64(0x200, 0x10000) == stub
    assert image.count(bytes.fromhex("00021fd6")) == 2


def test_shim_names_the_machines_it_knows():
    with pytest.raises(NotImplementedError, match="x86_64, aarch64, not 'riscv64'"):
        shim.build([], [], "riscv64")


def fat_binary(payload=b"\x7fELF cubin..."):
    entry = struct.pack("<HHIQ", 2, 0x101, 64, len(payload)) + bytes(48) + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry


def address_of(data):
    buffer = ctypes.create_string_buffer(data, len(data))
    return buffer, ctypes.addressof(buffer)


def test_ptx_goes_into_the_fat_binary_and_comes_out():
    container = fat_binary()
    buffer, address = address_of(container)
    assert fatbin.ptx_at(address) is None
    kept = fatbin.with_ptx(container, PTX, 100)
    assert kept.startswith(container[:8])
    assert container[16:] in kept  # the cubin is untouched and comes first
    buffer, address = address_of(kept)
    assert fatbin.ptx_at(address) == PTX
    assert buffer.raw == kept


def test_what_is_no_fat_binary_is_refused():
    with pytest.raises(ValueError, match="expected a fat binary"):
        fatbin.with_ptx(b"\x7fELF" + bytes(60), PTX, 100)
    assert fatbin.ptx_at(address_of(b"\x7fELF" + bytes(60))[1]) is None


def exported_names(path):
    """Names in the dynamic symbol table of an ELF library."""
    image = path.read_bytes()
    (sections,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, sections + size * i) for i in range(count)]
    (table,) = (header for header in headers if header[1] == 11)  # SHT_DYNSYM
    strings = headers[table[6]][4]
    for at in range(table[4], table[4] + table[5], 24):
        name, _, _, section = struct.unpack_from("<IBBH", image, at)
        if section:
            end = image.index(b"\0", strings + name)
            yield image[strings + name : end].decode()


def test_every_function_of_the_real_runtime_library_is_replaced():
    from cutlass.cute.runtime import find_runtime_libraries

    libraries = [Path(p) for p in find_runtime_libraries(enable_tvm_ffi=False)]
    (library,) = (path for path in libraries if "cute_dsl_runtime" in path.name)
    real = {name for name in exported_names(library) if name.startswith(("_cu", "cuda_dialect"))}
    runtime = cuda_runtime.EmulatedRuntime(print, int)
    assert real == {
        name
        for name in (*runtime.callbacks(), *cuda_runtime.RETURN_ZERO)
        if not name.startswith("CuteDSLRT")
    }


def test_only_object_files_are_redirected():
    with pytest.raises(ValueError, match="64-bit ELF"):
        link.redirect(b"!<arch>\n" + bytes(64), ["name"])


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (lambda t: t, (0, 4 * 120)),
        (lambda t: t[1], (4 * 30, 4 * 30)),
        (lambda t: t[:, ::2, 1:3], (4, 4 * (90 + 2 * 10 + 2))),
        (lambda t: t.transpose(0, 2), (0, 4 * 120)),
        (lambda t: t[0, 0, :1].expand(7, 1), (0, 4)),
        (lambda t: t[:0], None),
    ],
)
def test_extent_of_a_view(view, expected):
    t = torch.zeros(4, 3, 10)
    found = torch_extent(view(t))
    assert found == (expected and (t.data_ptr() + expected[0], expected[1]))


def test_extent_of_a_sub_byte_type_and_of_a_negative_stride():
    assert extent(1000, (3, 5), (5, 1), 4) == (1000, 8)
    assert extent(1000, (4,), (-2,), 16) == (988, 14)


def test_as_cuda_shares_memory_and_says_cuda():
    t = torch.arange(6.0).requires_grad_()
    view = as_cuda(t)
    assert view.__dlpack_device__() == (2, 0)
    assert as_cuda(view) is view
    assert is_on_cpu(t)
    assert not is_on_cpu(view)
    assert isinstance(view, CudaView)
    with pytest.raises(ValueError, match="host memory"):
        as_cuda("a string")


class Base:
    value = 1


class Derived(Base):
    pass


def test_replaced_attributes_come_back_as_they_were():
    with patching.replaced(Derived, "value", lambda old: old + 1):
        assert Derived.value == 2
        with patching.replaced(Derived, "value", lambda old: old + 1):
            assert Derived.value == 3
        assert Derived.value == 2
    assert "value" not in vars(Derived)
    assert Derived.value == 1


def test_environment_comes_back(monkeypatch):
    monkeypatch.setenv("FA4_TEST_A", "before")
    with patching.environment("FA4_TEST_A", "now"), patching.environment("FA4_TEST_B", "now"):
        pass
    import os

    assert os.environ["FA4_TEST_A"] == "before"
    assert "FA4_TEST_B" not in os.environ
