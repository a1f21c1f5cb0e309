"""Listings of nvdisasm and PTX texts become instructions."""

import pytest

from fa4.profile.classes import (
    emulated_exponentials,
    ptx_class,
    sass_class,
    sass_histogram,
)
from fa4.profile.ptx import parse_ptx
from fa4.profile.sass import Frame, Instruction, parse_sass
from tests.profile.snippets import PTX, SASS


@pytest.fixture
def function():
    (found,) = parse_sass(SASS)
    return found


def at(function, address):
    return next(ins for ins in function.instructions if ins.address == address)


def test_every_instruction_is_read(function):
    assert function.name == "kernel_a"
    assert [ins.address for ins in function.instructions] == list(range(0, 0x170, 16))


def test_guards_and_targets(function):
    branch = at(function, 0x40)
    assert (branch.predicate, branch.opcode, branch.target) == ("!P0", "BRA", ".L_slow")
    assert branch.conditional
    by_operand, plain = at(function, 0x70), at(function, 0x160)
    assert (by_operand.target, by_operand.conditional) == (".L_skip", True)
    assert (plain.ends, plain.conditional) == ("branch", False)
    assert (at(function, 0xE0).ends, at(function, 0x50).ends) == ("leave", "")


def test_lines_hold_until_the_next_and_keep_the_inline_chain(function):
    chain = (Frame("pkg/numerics/exp2.py", 7), Frame("pkg/warps/softmax.py", 11))
    assert at(function, 0x50).frames == at(function, 0x60).frames == chain
    assert at(function, 0x10).frames == (Frame("pkg/forward.py", 5),)


def test_annotations_are_no_operands(function):
    assert at(function, 0x110).operands == "R2, [R1]"


def test_a_listing_without_code_is_an_error():
    with pytest.raises(ValueError, match="no SASS"):
        parse_sass("nvdisasm fatal   : File format not recognized")


@pytest.mark.parametrize(
    ("opcode", "operands", "name"),
    [
        ("MUFU.EX2", "R1, R1", "MUFU.EX2"),
        ("MUFU.RCP", "R1, R1", "MUFU.other"),
        ("FMNMX3", "R1, R1, R2, R3, !PT", "FMNMX3"),
        ("FMNMX", "R1, R1, -127, !PT", "FMNMX"),
        ("FFMA2.RM", "R1, R2, R3, R4", "FFMA2"),
        ("FFMA.SAT", "R1, R2, R3, R4", "FFMA"),
        ("UTCHMMA", "gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11], UPT", "MMA"),
        ("UTCBAR", "[UR4], URZ", "COMMIT"),
        ("UIADD3", "UR4, UPT, UPT, UR4, 0x1, URZ", "UNIFORM"),
        ("USETMAXREG.DEALLOC.CTAPOOL", "0x38", "SETMAXREG"),
        ("SEL", "R4, R4, 0xff800000, P0", "LOGIC"),
        ("IMAD", "R4, R5, 0x800000, R6", "IMAD"),
        ("IMAD.MOV.U32", "R4, RZ, RZ, 0x1", "MOVE"),
        ("IMAD", "R4, RZ, RZ, UR4", "MOVE"),
        ("HFMA2", "R4, -RZ, RZ, 0, 1", "MOVE"),
        ("STL", "[R1], R2", "LOCAL"),
    ],
)
def test_sass_classes(opcode, operands, name):
    assert sass_class(Instruction(0, opcode, operands)) == name


def test_an_emulated_exponential_is_a_rounding_down_lane():
    code = [Instruction(0, op) for op in ("FADD2.RM", "FADD.RM", "FFMA2.RM", "FADD2", "FFMA2")]
    assert emulated_exponentials(code) == 2 + 1 + 2


def test_histogram(function):
    histogram = sass_histogram(function.instructions)
    assert (histogram["MBARRIER"], histogram["FADD2"], histogram["LOCAL"]) == (3, 2, 1)
    assert sum(histogram.values()) == len(function.instructions)


def test_ptx_statements():
    function = parse_ptx(PTX)
    assert function.name == "kernel_b"
    opcodes = [ins.opcode for ins in function.instructions]
    wait = ["mbarrier.try_wait.parity.shared.b64", "bra.uni", "bra.uni"]
    assert opcodes[:6] == ["mov.u32", "setp.eq.s32", "bra", *wait]
    assert opcodes[6:10] == [*wait[:2], "bra", wait[2]]
    assert opcodes[10:] == ["add.s32", "fma.rn.f32x2", "ex2.approx.ftz.f32", *opcodes[13:]]
    assert opcodes[13:] == ["st.global.v2.f32", "ret"]


def test_ptx_labels_of_inline_assembly_are_told_apart():
    function = parse_ptx(PTX)
    targets = [ins.target for ins in function.instructions if ins.ends == "branch"]
    places = [function.labels[target] for target in targets]
    assert places == [14, 6, 3, 10, 14, 6]


def test_ptx_lines_follow_inlined_at():
    chain = (Frame("pkg/warps/softmax.py", 12), Frame("pkg/forward.py", 7))
    code = parse_ptx(PTX).instructions
    assert code[10].frames == chain
    assert code[11].frames == (Frame("pkg/numerics/exp2.py", 4), *chain)


def test_ptx_of_another_kernel_is_an_error():
    with pytest.raises(ValueError, match="no kernel with 'missing'"):
        parse_ptx(PTX, "missing")


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        ("tcgen05.mma.cta_group::1.kind::f16", "tcgen05.mma"),
        ("tcgen05.wait::ld.sync.aligned", "tcgen05.other"),
        ("fma.rn.f32x2", "packed f32x2"),
        ("max.f32", "max/min"),
        ("cvt.rn.bf16x2.f32", "cvt"),
        ("and.pred", "predicate"),
        ("add.s32", "integer"),
        ("bra.uni", "branch"),
    ],
)
def test_ptx_classes(opcode, name):
    assert ptx_class(opcode) == name
