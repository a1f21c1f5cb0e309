"""Loops, paths through them, and which role a block belongs to."""

import pytest

from fa4.profile.flow import Flow
from fa4.profile.paths import body
from fa4.profile.pipes import mma_cycles, pipe_cycles, step
from fa4.profile.ptx import parse_ptx
from fa4.profile.roles import KERNEL, block_roles
from fa4.profile.sass import Function, Instruction, parse_sass
from tests.profile.snippets import PTX, SASS
from tests.profile.variants import plan


@pytest.fixture
def flow():
    return Flow(parse_sass(SASS)[0])


def starts(flow, loop):
    return flow.blocks[loop.header][0].address


def test_loops_are_found_from_back_edges(flow):
    found = {starts(flow, loop): loop.depth for loop in flow.loops()}
    assert found == {0x30: 0, 0xB0: 1, 0x130: 1}


def test_mbarrier_retries_are_told_from_loops(flow):
    retries = [starts(flow, loop) for loop in flow.loops() if flow.is_retry(loop)]
    assert retries == [0x130]


def test_body_leaves_out_inner_loops_and_retries(flow):
    loops = flow.loops()
    found = body(flow, loops[0], loops)
    # 2 wait, 3 + 2 + 1 straight, 1 back edge, 1 out-of-line branch back after a retry
    assert found.static == 10
    assert (found.shortest, found.longest) == (7, 9)


def test_a_loop_that_only_waits_in_line_has_a_path():
    code = [
        Instruction(0, "MOV"),
        Instruction(16, "SYNCS.TRYWAIT"),
        Instruction(32, "BRA", target="wait", ends="branch", conditional=True),
        Instruction(48, "BRA", target="head", ends="branch", conditional=True),
        Instruction(64, "EXIT", ends="leave"),
    ]
    flow = Flow(Function("spin", code, {"head": 0, "wait": 1}))
    loops = flow.loops()
    found = body(flow, loops[0], loops)
    assert (found.static, found.shortest, found.longest) == (2, 4, 4)


def test_roles_reach_helpers_through_control_flow(flow):
    roles = dict(zip((block[0].address for block in flow.blocks), block_roles(flow), strict=True))
    assert roles[0x0] == KERNEL
    assert roles[0x20] == roles[0x50] == roles[0x80] == roles[0xD0] == "softmax"
    assert roles[0x130] == "softmax"
    assert roles[0xF0] == "load"


def test_files_of_warps_that_are_no_role_do_not_count():
    text = SASS.replace("pkg/warps/load.py", "pkg/warps/work.py")
    roles = set(block_roles(Flow(parse_sass(text)[0])))
    assert roles == {KERNEL, "softmax"}


def test_ptx_roles():
    flow = Flow(parse_ptx(PTX))
    roles = block_roles(flow)
    owner = {
        ins.opcode: role for role, code in zip(roles, flow.blocks, strict=True) for ins in code
    }
    assert owner["fma.rn.f32x2"] == owner["bra.uni"] == "softmax"
    assert owner["ret"] == KERNEL


def test_pipe_cycles():
    opcodes = ("MUFU.EX2", "FFMA2", "FADD", "IMAD.MOV.U32", "FMNMX3", "F2FP", "SYNCS", "UMOV")
    cycles = pipe_cycles(Instruction(0, opcode) for opcode in opcodes)
    assert cycles == {"issue": 8, "mufu": 8, "fma": 4, "alu": 4}


def test_step_reproduces_the_published_model_of_a_known_kernel():
    """flash-attn-4 d128 non-causal: counts of its loops and the cycles that follow from them."""
    softmax = {"issue": 550, "mufu": 8 * 105, "fma": 432, "alu": 324}
    correction = {"issue": 185, "mufu": 0, "fma": 256, "alu": 8}
    found = step(plan(), softmax, correction)
    assert (found.mma, found.mufu, found.issue, found.fma, found.alu) == (
        2048,
        1680,
        1285,
        1120,
        656,
    )
    assert found.bound == "mma"
    assert mma_cycles(plan((64, 64))) == 1024
