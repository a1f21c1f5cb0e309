"""Which kernels are covered, what is left of sm_100a, and how a refusal reads."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fa4.compile import artifacts
from fa4.emulator.program import Program
from fa4.on_hopper.instructions import BLACKWELL_ONLY, NotCovered
from fa4.on_hopper.modes import Modes
from fa4.on_hopper.rewrite import rewrite
from fa4.plan_backward import plan_backward
from fa4.problem import example_problem
from tests.emulator.ptx_kernels import module
from tests.on_hopper.kernels import kernel
from tests.profile.variants import variants

EVERYTHING = Modes(skew=10.0, defer=True, lazy=True, poison=True)
SHORT = ("d64_bfloat16", "d96_bfloat16_right", "d128_float16_right_softcap", "d192_dv128_bfloat16")
VARIANTS = [
    pytest.param(plan, id=plan.name, marks=() if plan.name.endswith(SHORT) else pytest.mark.slow)
    for plan, _ in variants()
]


@pytest.mark.parametrize("plan", VARIANTS)
def test_every_forward_variant_is_covered(plan):
    """Nothing of sm_100a is left, and all that is there can be executed."""
    ptx = artifacts(plan).ptx
    (entry,) = re.findall(r"\.entry\s+([\w$]+)", ptx)
    made = rewrite(ptx, entry, EVERYTHING)
    assert ".version 8.6\n.target sm_90a\n" in made.ptx
    program = Program.from_ptx(made.ptx, entry)
    assert program.kernel.required_threads == made.threads == plan.threads + 128
    opcodes = {instruction.opcode for instruction in program.kernel.instructions}
    assert [opcode for opcode in opcodes if BLACKWELL_ONLY.fullmatch(opcode)] == []
    assert not any(opcode.startswith("setmaxnreg") for opcode in opcodes)
    for block in program.translation.flow.blocks:
        program.translation._compile(block, masked=True)


@pytest.fixture(scope="module")
def backward_kernels() -> dict[str, str]:
    """The three kernels of a backward pass, rewritten, by name."""
    ptx = artifacts(plan_backward(example_problem(64, dtype="float16"), "sm_100a")).ptx
    entries = re.findall(r"\.entry\s+([\w$]+)", ptx)
    assert len(entries) == 3
    return {entry: rewrite(ptx, entry, EVERYTHING).ptx for entry in entries}


def test_other_kernels_of_the_module_are_left_out(backward_kernels: dict[str, str]) -> None:
    """They are for sm_100a, and a driver compiles all that a module holds."""
    for entry, ptx in backward_kernels.items():
        assert re.findall(r"\.entry\s+([\w$]+)", ptx) == [entry]
        opcodes = re.findall(r"^\s*(?:@!?\S+\s+)?([a-z]\w*(?:\.[\w:]+)+)", ptx, re.MULTILINE)
        assert opcodes
        assert [opcode for opcode in opcodes if BLACKWELL_ONLY.fullmatch(opcode)] == []


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas of the CUDA toolkit")
def test_ptxas_takes_the_kernels(backward_kernels: dict[str, str], tmp_path: Path) -> None:
    for entry, ptx in backward_kernels.items():
        source = tmp_path / f"{entry}.ptx"
        source.write_text(ptx)
        command = ["ptxas", "-arch=sm_90a", "-O1", str(source), "-o", str(tmp_path / "cubin")]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_products_of_16_bits_are_added_in_float32(kind: str) -> None:
    made = rewrite(kernel(f"fma.rn.f32.{kind} %f1, %h1, %h2, %f3;"), "k").ptx
    assert f"cvt.f32.{kind} fa4_x, %h1;" in made
    assert f"cvt.f32.{kind} fa4_y, %h2;" in made
    assert "fma.rn.f32 %f1, fa4_x, fa4_y, %f3;" in made


def test_a_kernel_without_tensor_memory_gets_no_tensor_core():
    ptx = module("mov.b32 %r5, 1;", directives=".reqntid 128, 1, 1")
    made = rewrite(ptx, "k", EVERYTHING)
    program = Program.from_ptx(made.ptx, "k")
    assert program.kernel.required_threads == made.threads == made.own_threads == 128
    assert "FA4_TENSOR_CORE" not in made.ptx


def test_parameters_are_appended():
    made = rewrite(kernel("", 2), "k")
    params = Program.from_ptx(made.ptx, "k").params
    assert [param.name for param in params] == ["p0", "p1", "fa4_workspace", "fa4_seed"]
    assert made.params == 2
    assert [p.name for p in Program.from_ptx(rewrite(kernel(""), "k").ptx, "k").params] == [
        "fa4_workspace",
        "fa4_seed",
    ]


def test_barriers_keep_their_number_of_threads():
    text = rewrite(kernel("bar.sync 3, 64; bar.arrive 4, 96; LABEL:barrier.sync 5;"), "k").ptx
    assert re.findall(r"bar(?:rier)?\.(?:sync|arrive)\s[^;]*;", text) == [
        "bar.sync 0, 128;",
        "bar.sync 3, 64;",
        "bar.arrive 4, 96;",
        "barrier.sync 5, 128;",
        "bar.sync 0, 128;",
    ]


REFUSED = {
    "tcgen05.mma.cta_group::2.kind::f16 [%r2], %d1, %d2, %r3, %p1;": "not covered on Hopper",
    "tcgen05.mma.cta_group::1.kind::i8 [%r2], %d1, %d2, %r3, %p1;": "not covered on Hopper",
    "tcgen05.mma.cta_group::1.kind::f16 [%r2], %d1, %d2, %r3, {%r4, %r5, %r6, %r7}, %p1;": "only D",
    "tcgen05.ld.sync.aligned.16x256b.x1.b32 {%r4, %r5, %r6, %r7}, [%r2];": "not covered on Hopper",
    "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r4}, [%r2];": "1 registers for 2 columns",
    "tcgen05.cp.cta_group::1.128x256b [%r2], %d1;": "not covered on Hopper",
    "max.f32x2 %d1, %d2, %d3;": "not covered on Hopper",
    "barrier.cluster.arrive;": "would have to arrive",
}


@pytest.mark.parametrize("instruction", REFUSED)
def test_a_refusal_names_the_line(instruction):
    ptx = kernel(f"mov.u32 %r5, 1; // here it comes\n{instruction}\n")
    line = 1 + next(i for i, text in enumerate(ptx.split("\n")) if instruction in text)
    with pytest.raises(NotCovered, match=f"PTX line {line}: ") as refusal:
        rewrite(ptx, "k")
    assert instruction.split()[0].rstrip(";") in str(refusal.value)
    assert REFUSED[instruction] in str(refusal.value)


def test_kernels_that_are_not_covered():
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;"
    with pytest.raises(NotCovered, match=r"2 tcgen05\.alloc"):
        rewrite(kernel(alloc), "k")
    with pytest.raises(NotCovered, match="number of threads is not known"):
        rewrite(module(""), "k")
    with pytest.raises(NotCovered, match="number of threads is not known"):
        rewrite(module("", directives=".reqntid 128, 2, 1"), "k")
    with pytest.raises(NotCovered, match="multiple of 128"):
        rewrite(module("", directives=".reqntid 96, 1, 1"), "k")
    with pytest.raises(NotCovered, match="reads %ntid"):
        rewrite(kernel("mov.u32 %r5, %ntid.x;"), "k")


def test_guards_branch_around():
    text = rewrite(kernel("@!%p3 tcgen05.wait::st.sync.aligned;"), "k", Modes(lazy=True)).ptx
    assert re.search(r"@%p3 bra (FA4_SKIP_\d+);\n\{[^}]*\}", text)
    assert re.search(r"@!%p1 bra (FA4_SKIP_\d+);", text) is None, "other guards stay as they are"
