"""Static checks: reads of tcgen05.ld results before the wait."""

import pytest

from fa4.emulator.checks import early_reads
from fa4.emulator.program import Program
from tests.emulator.ptx_kernels import module

LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%f20}, [%r3];"
WAIT = "tcgen05.wait::ld.sync.aligned;"
USE = "add.f32 %f21, %f20, %f20;"
SKIP = "setp.eq.u32 %p1, %r99, 0; @%p1 bra L;"
CASES = {
    "waited": (LOAD + WAIT + USE, 0),
    "not waited": (LOAD + USE, 1),
    "waited on one path only": (LOAD + SKIP + WAIT + "L:" + USE, 1),
    "waited on both paths": (LOAD + SKIP + WAIT + USE + "bra E; L:" + WAIT + USE + "E:", 0),
    "in the next iteration": ("L:" + USE + LOAD + SKIP + WAIT, 1),
    "moved, then waited": (LOAD + "mov.f32 %f22, %f20;" + WAIT + "add.f32 %f21, %f22, %f22;", 0),
    "moved, not waited": (LOAD + "mov.f32 %f22, %f20; add.f32 %f21, %f22, %f22;", 1),
    "overwritten": (LOAD + "mov.f32 %f20, 0f00000000;" + USE, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_early_reads(case):
    body, count = CASES[case]
    found = early_reads(Program.from_ptx(module(body), "k"))
    assert len(found) == count
    assert all("add.f32" in str(read) for read in found)
