"""Divergence and reconvergence, warp-wide instructions, indexed branches."""

import numpy as np
import pytest

from fa4.emulator.errors import KernelTrap, PtxSyntaxError, UnsupportedInstruction
from fa4.emulator.program import Program, Schedule
from tests.emulator.ptx_kernels import KINDS, module, run

STORE = "mad.wide.u32 %d0, %r99, 4, %d50;\nst.global.u32 [%d0], {};\n"


def result(body, threads=128, schedule=None):
    out = np.zeros(threads, np.uint32)
    run(body, out, threads=threads, schedule=schedule)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_loop_with_a_trip_count_per_lane(kind):
    body = """mov.u32 %r1, 0; and.b32 %r2, %r99, 15;
    LOOP: setp.ge.u32 %p1, %r1, %r2; @%p1 bra OUT;
    add.u32 %r1, %r1, 1; add.u32 %r3, %r3, %r1; bra LOOP;
    OUT: mad.lo.u32 %r4, %r1, 1000, %r99;""" + STORE.format("%r4")
    lanes = np.arange(128)
    np.testing.assert_array_equal(
        result(body, schedule=Schedule(kind)), (lanes & 15) * 1000 + lanes
    )


@pytest.mark.parametrize("kind", KINDS)
def test_nested_branches_keep_the_values_of_inactive_lanes(kind):
    body = """mov.u32 %r1, 5; and.b32 %r2, %r99, 1; setp.eq.u32 %p1, %r2, 0;
    setp.lt.u32 %p2, %r99, 70;
    @%p1 bra EVEN;
    mov.u32 %r1, 7; @%p2 bra JOIN; mov.u32 %r1, 9; bra JOIN;
    EVEN: @!%p2 bra JOIN; add.u32 %r1, %r1, 100;
    JOIN: elect.sync %r5|%p3, -1; selp.b32 %r6, 1000, 0, %p3; add.u32 %r1, %r1, %r6;
    """ + STORE.format("%r1")
    lanes = np.arange(128)
    expected = np.where(
        lanes % 2 == 0, np.where(lanes < 70, 105, 5), np.where(lanes < 70, 7, 9)
    ) + np.where(lanes % 32 == 0, 1000, 0)
    np.testing.assert_array_equal(result(body, schedule=Schedule(kind)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_warp_wide_instruction_waits_for_all_lanes(kind):
    """Also where the lanes that are on their way stand further down in the code."""
    body = """and.b32 %r2, %r99, 1; setp.eq.u32 %p1, %r2, 1; bra START;
    JOIN: vote.sync.ballot.b32 %r1, %p1, -1; bra END;
    START: @%p1 bra JOIN; add.u32 %r3, %r2, 1; bra JOIN;
    END: """ + STORE.format("%r1")
    assert set(result(body, schedule=Schedule(kind)).tolist()) == {0xAAAAAAAA}


@pytest.mark.parametrize("kind", KINDS)
def test_warps_with_roles_and_an_early_exit(kind):
    body = """shr.u32 %r1, %r99, 5; setp.eq.u32 %p1, %r1, 1; @%p1 ret;
    setp.eq.u32 %p2, %r1, 2; @%p2 bra TWO;
    mov.u32 %r2, 11; bar.sync 1, 96; bra END;
    TWO: mov.u32 %r2, 22; bar.sync 1, 96;
    END: """ + STORE.format("%r2")
    expected = np.repeat([11, 0, 22, 11], 32)
    np.testing.assert_array_equal(result(body, schedule=Schedule(kind)), expected)


def test_lanes_beyond_the_block_do_nothing():
    out = np.zeros(64, np.uint32)
    run("mov.u32 %r1, 3;" + STORE.format("%r1"), out, threads=40)
    assert out.tolist() == [3] * 40 + [0] * 24


def test_indexed_branch():
    body = """and.b32 %r1, %r99, 3;
    TABLE: .branchtargets A, B, C, A;
    brx.idx %r1, TABLE;
    A: mov.u32 %r2, 1; bra END; B: mov.u32 %r2, 2; bra END; C: mov.u32 %r2, 3;
    END: """ + STORE.format("%r2")
    assert result(body)[:8].tolist() == [1, 2, 3, 1, 1, 2, 3, 1]


def test_predicated_instruction_keeps_the_old_value():
    body = """setp.lt.u32 %p1, %r99, 5; mov.u32 %r1, 1; @%p1 mov.u32 %r1, 2;
    @!%p1 add.u32 %r1, %r1, 10;""" + STORE.format("%r1")
    assert result(body)[:8].tolist() == [2] * 5 + [11] * 3


def test_scopes_may_redeclare_names():
    body = """mov.u32 %r1, 0;
    { .reg .b32 x; mov.u32 x, 4; L: sub.u32 x, x, 1; add.u32 %r1, %r1, 1;
      setp.ne.u32 %p1, x, 0; @%p1 bra L; }
    { .reg .b32 x; mov.u32 x, 3; L: sub.u32 x, x, 1; add.u32 %r1, %r1, 100;
      setp.ne.u32 %p1, x, 0; @%p1 bra L; }""" + STORE.format("%r1")
    assert result(body)[0] == 304


WARP = {
    "shfl.sync.bfly.b32 %r1, %r99, 1, 31, -1;": lambda i: i ^ 1,
    "shfl.sync.idx.b32 %r1, %r99, 5, 31, -1;": lambda i: i // 32 * 32 + 5,
    "shfl.sync.up.b32 %r1, %r99, 2, 0, -1;": lambda i: i if i % 32 < 2 else i - 2,
    "shfl.sync.down.b32 %r1, %r99, 3, 31, -1;": lambda i: i if i % 32 > 28 else i + 3,
    "shfl.sync.idx.b32 %r1, %r99, 1, 0x1807, -1;": lambda i: i // 8 * 8 + 1,
    "setp.gt.u32 %p1, %r99, 33; vote.sync.ballot.b32 %r1, %p1, -1;": lambda i: (
        0 if i < 32 else 0xFFFFFFFC if i < 64 else 0xFFFFFFFF
    ),
    "setp.gt.u32 %p1, %r99, 33; vote.sync.any.pred %p2, %p1, -1; selp.b32 %r1, 1, 0, %p2;": (
        lambda i: int(i >= 32)
    ),
    "setp.gt.u32 %p1, %r99, 33; vote.sync.all.pred %p2, %p1, -1; selp.b32 %r1, 1, 0, %p2;": (
        lambda i: int(i >= 64)
    ),
    "redux.sync.add.u32 %r1, %r99, -1;": lambda i: sum(range(i // 32 * 32, i // 32 * 32 + 32)),
    "redux.sync.max.s32 %r1, %r99, -1;": lambda i: i // 32 * 32 + 31,
    "shr.u32 %r2, %r99, 3; match.any.sync.b32 %r1, %r2, -1;": lambda i: 0xFF << i % 32 // 8 * 8,
    "activemask.b32 %r1;": lambda i: 0xFFFFFFFF,
    "mov.u32 %r1, %laneid;": lambda i: i % 32,
    "mov.u32 %r1, %warpid;": lambda i: i // 32,
    "mov.u32 %r1, %lanemask_lt;": lambda i: (1 << i % 32) - 1,
}


@pytest.mark.parametrize("operation", WARP)
def test_warp_wide(operation):
    got = result(operation + STORE.format("%r1"))
    assert got.tolist() == [WARP[operation](i) for i in range(128)]


def test_vote_inside_a_branch_counts_active_lanes_only():
    body = """and.b32 %r2, %r99, 1; setp.eq.u32 %p1, %r2, 1; mov.u32 %r1, 0;
    @%p1 bra END; activemask.b32 %r1;
    END: """ + STORE.format("%r1")
    assert result(body)[:2].tolist() == [0x55555555, 0]


def test_unknown_instruction_names_its_line_and_source():
    body = ".loc 1 42 3\nwmma.load.a.sync %r1;"
    text = module(body) + '\n.file 1 "role.py"\n'
    program = Program.from_ptx(text, "k")
    from fa4.emulator.labels import Labels
    from fa4.emulator.memory import GlobalMemory
    from fa4.emulator.program import Launch

    launch = Launch((1, 1, 1), (32, 1, 1), (1, 1, 1), 0, b"")
    line = next(i for i, t in enumerate(text.split("\n"), 1) if "wmma" in t)
    with pytest.raises(UnsupportedInstruction) as error:
        program.run(launch, GlobalMemory(), Schedule(), Labels(warps=("softmax",)))
    message = str(error.value)
    assert f"PTX line {line}: wmma.load.a.sync" in message
    assert "role.py:42" in message
    assert "softmax" in message


def test_trap_is_an_error():
    with pytest.raises(KernelTrap, match="trap"):
        result("setp.eq.u32 %p1, %r99, 3; @%p1 trap;" + STORE.format("%r99"))


def test_unknown_kernel_and_label():
    with pytest.raises(PtxSyntaxError, match=r"it holds \['k'\]"):
        Program.from_ptx(module(""), "other")
    with pytest.raises(PtxSyntaxError, match="label NOWHERE"):
        Program.from_ptx(module("bra NOWHERE;"), "k")
