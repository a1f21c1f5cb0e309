"""Resources read from cubins: registers, stack, spills, setmaxnreg."""

import struct

import pytest

from fa4.profile.elf import read_resources, read_sections, read_toolchain
from tests.profile import tiny_kernels


@pytest.fixture(scope="module")
def relaxed():
    return tiny_kernels.compiled(tiny_kernels.relaxed)


def only(cubin):
    (resources,) = read_resources(cubin)
    return resources


def test_a_small_kernel_has_neither_stack_nor_spills(relaxed):
    resources = only(relaxed[1])
    assert "load_use_kernel" in resources.kernel
    assert 8 <= resources.registers <= 32
    assert (resources.stack, resources.local_loads, resources.local_stores) == (0, 0, 0)
    assert not resources.spills
    assert resources.setmaxnreg == ()
    assert resources.code_bytes % 128 == 0


def test_spills_are_found():
    resources = only(tiny_kernels.compiled(tiny_kernels.spilling)[1])
    assert resources.registers == 64, "1024 threads leave 64 registers to each"
    assert resources.spills
    assert resources.stack >= 4 * (tiny_kernels.LIVE - 64)
    assert resources.local_loads
    assert resources.local_stores


def test_ignored_setmaxnreg_is_seen():
    ptx, cubin = tiny_kernels.compiled(tiny_kernels.budgets_ignored)
    assert ptx.count("setmaxnreg") == 2
    assert only(cubin).setmaxnreg == ()


def test_honoured_setmaxnreg_is_seen():
    cubin = tiny_kernels.compiled(tiny_kernels.budgets_honoured)[1]
    assert sorted(only(cubin).setmaxnreg) == [40, 160]


def test_the_compiler_leaves_its_version(relaxed):
    assert read_toolchain(relaxed[1]).count(".") == 2


def test_other_files_are_refused(relaxed):
    with pytest.raises(ValueError, match="not a cubin"):
        read_resources(b"MZ" + relaxed[1][2:])


def test_a_cubin_without_register_counts_is_refused(relaxed):
    cubin = bytearray(relaxed[1])
    section = read_sections(bytes(cubin))[".nv.info"]
    at = bytes(cubin).index(section.data)
    struct.pack_into(f"{len(section.data)}x", cubin, at)
    with pytest.raises(ValueError, match="no register count"):
        read_resources(bytes(cubin))
