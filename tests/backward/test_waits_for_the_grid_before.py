"""Kernels that start in the wake of the one before touch what it wrote behind griddepcontrol.wait.

No result shows a missing one: launches end before the next in the emulator and with Blackwell's
kernels on Hopper silicon, and a GPU by itself rarely overlaps them that far. A checked run finds
it; on all paths, taken or not, it is read from the compiled PTX. What another kernel of the pass
writes (LSE, delta, sums of dQ, turns, the tile counter) is reached by plain pointers; TMA
descriptors are of the caller's tensors only.
"""

import re

import pytest
import torch

import fa4
from fa4 import emulator
from fa4.compile import artifacts
from fa4.emulator.checker.findings import CheckError
from fa4.emulator.program import Program
from fa4.emulator.ptx.syntax import Instruction
from fa4.emulator.translate.flow import Block
from fa4.plan_backward import plan_backward
from fa4.problem import example_problem
from tests.backward.gradients import draw, upstream

WAIT = "griddepcontrol.wait"
PLAIN = re.compile(
    r"(ld|st|atom|red)\.(\S*\.)?global|cp\.(reduce\.)?async\.bulk\.(?!tensor)\S*global"
)
# What holds on all paths: it has waited, an mbarrier woke it, it has signalled no mbarrier.
WAITED, WOKEN, SILENT = 1, 2, 4
# Kernel of an architecture -> how many waits it has, what it accesses by plain pointers.
KERNELS = {
    ("sm_100a", ""): (2, {"ld", "st", "cp"}),  # turns; LSE, delta and dQ
    ("sm_90a", ""): (1, {"ld", "st", "cp", "atom"}),  # and the counter
    ("sm_100a", "_dq"): (1, {"ld"}),
    ("sm_90a", "_dq"): (1, {"ld"}),
}


@pytest.fixture(autouse=True)
def arch() -> None:
    """A kernel has its own here."""


def compiled(arch: str) -> tuple[str, dict[str, str]]:
    """PTX, and the names of the entries by what they end on: "_rows", "" and "_dq"."""
    plan = plan_backward(example_problem(64, causal=True, deterministic=True), arch)
    ptx = artifacts(plan).ptx
    names = re.findall(rf"\.entry ({plan.name}(\w*?)_\d+)\(", ptx)
    return ptx, {ends_on: name for name, ends_on in names}


def waits(ptx: str, entry: str) -> list[tuple[int, int]]:
    """Where an entry waits: positions in the PTX."""
    begin = ptx.index(f".entry {entry}(")
    end = ptx.find(".entry", begin + 1) % len(ptx)
    return [m.span() for m in re.finditer(rf"\b{WAIT};", ptx) if begin < m.start() <= end]


def holds_behind(instruction: Instruction, facts: int) -> int:
    """The facts after an instruction, given those before. A predicated wait may not happen."""
    if "mbarrier.arrive" in instruction.opcode:
        return facts & ~SILENT
    if instruction.opcode == WAIT and not instruction.guard:
        return facts | WAITED
    if instruction.opcode.startswith("mbarrier.try_wait") and not instruction.guard:
        return facts | WOKEN
    return facts


def holds_before(blocks: list[Block], instructions: list[Instruction]) -> dict[int, int]:
    """The facts before each instruction that can be reached, by its index."""
    entry, work, before = {0: SILENT}, [0], {}
    while work:
        block = blocks[work.pop()]
        facts = entry[block.index]
        for i in range(block.start, block.end):
            before[i] = facts
            facts = holds_behind(instructions[i], facts)
        for successor in block.successors:
            old = entry.get(successor)
            entry[successor] = facts if old is None else facts & old
            if entry[successor] != old:
                work.append(successor)
    return before


def unordered(ptx: str, entry: str) -> tuple[list[str], set[str]]:
    """Plain accesses that nothing orders behind the grid before, and the roots of all there are.

    In order are those of a warp that has waited; and on Hopper, where one warp waits before it
    signals anything and hands out the tiles then, those of warps that an mbarrier woke.
    """
    program = Program(ptx, entry)
    instructions = program.kernel.instructions
    facts = holds_before(program.translation.flow.blocks, instructions)
    waiting = [facts[i] for i in facts if instructions[i].opcode == WAIT]
    handed_out = program.kernel.target == "sm_90a" and all(each & SILENT for each in waiting)
    enough = WAITED | WOKEN if waiting and handed_out else WAITED
    plain = [i for i in facts if PLAIN.match(instructions[i].opcode)]
    early = [instructions[i].text for i in plain if not facts[i] & enough]
    return early, {instructions[i].root for i in plain}


@pytest.mark.parametrize(("arch", "kernel"), list(KERNELS), ids=str)
def test_what_the_grid_before_wrote_is_touched_behind_a_wait(arch: str, kernel: str) -> None:
    ptx, names = compiled(arch)
    early, roots = unordered(ptx, names[kernel])
    assert roots == KERNELS[arch, kernel][1]
    assert not early


@pytest.mark.parametrize(("arch", "kernel"), list(KERNELS), ids=str)
def test_every_wait_is_needed(arch: str, kernel: str) -> None:
    ptx, names = compiled(arch)
    places = waits(ptx, names[kernel])
    assert len(places) == KERNELS[arch, kernel][0]
    for begin, end in places:
        early, _ = unordered(ptx[:begin] + ptx[end:], names[kernel])
        assert early


@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_the_first_kernel_has_nobody_to_wait_for(arch: str) -> None:
    ptx, names = compiled(arch)
    assert not waits(ptx, names["_rows"])


# Kernel, which of its waits are gone -> roles that a checked run finds too early. Blackwell's
# reduce role alone is not: a dQ comes from LSE and delta, for which the load role has waited.
EARLY = [
    ("sm_100a", "", (0,), ()),
    ("sm_100a", "", (1,), ("load",)),
    ("sm_100a", "", (0, 1), ("load", "reduce")),
    ("sm_100a", "_dq", (0,), None),  # without roles
    ("sm_90a", "", (0,), ("load", "reduce")),
    ("sm_90a", "_dq", (0,), None),
]


@pytest.mark.parametrize(("arch", "kernel", "gone", "roles"), EARLY, ids=str)
def test_a_checked_run_finds_a_missing_wait(
    arch: str,
    kernel: str,
    gone: tuple[int, ...],
    roles: tuple[str, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, found = Program.from_ptx, {}

    def without(ptx: str, entry: str) -> Program:
        if re.search(rf"deterministic{kernel}_\d+$", entry):
            for number in sorted(gone, reverse=True):
                begin, end = waits(ptx, entry)[number]
                ptx = ptx[:begin] + ptx[end:]
        return original(ptx, entry)

    monkeypatch.setenv("FA4_EMULATE_ARCH", arch)
    monkeypatch.setattr(Program, "from_ptx", staticmethod(without))
    inputs = tuple(t.requires_grad_() for t in draw((150, 300), dims=(64, 64)))
    try:
        with emulator.session(arch=arch, num_sms=1, check=True):
            out = fa4.flash_attn_func(*inputs, causal=True, deterministic=True)
            torch.autograd.grad(out, inputs, upstream(inputs)[0])
    except CheckError as error:
        found = error.findings
    assert all(re.search(rf"deterministic{kernel}_\d+$", name) for name in found)
    early = [finding for findings in found.values() for finding in findings]
    assert roles is not None or early
    assert roles is None or {finding.second.role for finding in early} == set(roles)
    assert all("by the grid before" in finding.message for finding in early)
    assert all("griddepcontrol.wait" in finding.missing for finding in early)
