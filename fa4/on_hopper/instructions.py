"""sm_100a instructions in terms of sm_90a: one function per kind, and the table of what is covered.

Each function gets a `Statement` and returns PTX for a block of its own. What it declares starts
with `fa4_`, so that it hides no register of the kernel. %fa4_sm (u64) is this SM's workspace.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fa4.emulator.ptx.operands import split_operands
from fa4.on_hopper import workspace as ws
from fa4.on_hopper.modes import Modes

PENDING = 256  # stores to tensor memory that a thread can hold back in mode lazy


class NotCovered(NotImplementedError):
    """The kernel has an instruction that does not run on Hopper this way."""


@dataclass(frozen=True)
class Statement:
    """One instruction of the kernel, without its guard; `line` counts from 1 in the PTX."""

    opcode: str
    operands: tuple[str, ...]
    line: int
    modes: Modes
    threads: int  # of a CTA, as the kernel knows them

    def refuse(self, why: str) -> NotCovered:
        text = f"{self.opcode} {', '.join(self.operands)}".rstrip()
        return NotCovered(f"PTX line {self.line}: {text}: {why}")


def _address(operand: str, register: str) -> str:
    """PTX that sets `register` (b32) to the operand `[base + offset]`."""
    base, _, offset = operand.strip("[] ").partition("+")
    return f"add.s32 {register}, {base.strip()}, {offset.strip() or 0};"


def _nothing(_statement: Statement) -> str:
    return ""


def _packed(statement: Statement) -> str:
    """An operation on f32x2 as two on f32."""
    operation = statement.opcode.removesuffix("x2")
    target, *sources = statement.operands
    names = ["fa4_x", "fa4_y", "fa4_z"][: len(sources)]
    lines = [f".reg .b32 {', '.join(f'{n}0, {n}1' for n in [*names, 'fa4_d'])};"]
    lines += [f"mov.b64 {{{n}0, {n}1}}, {s};" for n, s in zip(names, sources, strict=True)]
    lines += [f"{operation} fa4_d{i}, {', '.join(f'{n}{i}' for n in names)};" for i in "01"]
    return "\n".join([*lines, f"mov.b64 {target}, {{fa4_d0, fa4_d1}};"])


def _mixed(statement: Statement) -> str:
    """float32 += product of 16-bit numbers, which float32 holds exactly."""
    operation, _, kind = statement.opcode.rpartition(".")
    target, *factors, added = statement.operands
    lines = [".reg .b32 fa4_x, fa4_y;"]
    names = ("fa4_x", "fa4_y")
    lines += [f"cvt.f32.{kind} {n}, {f};" for n, f in zip(names, factors, strict=True)]
    return "\n".join([*lines, f"{operation} {target}, fa4_x, fa4_y, {added};"])


def _place(address: str) -> str:
    """PTX that sets fa4_at to the cell of this thread at a tensor memory address."""
    return f"""
.reg .b32 fa4_t, fa4_l, fa4_c; .reg .b64 fa4_at;
{_address(address, "fa4_t")}
mov.u32 fa4_l, %laneid;
shr.u32 fa4_c, fa4_t, 16;
add.u32 fa4_l, fa4_l, fa4_c;
and.b32 fa4_c, fa4_t, 0xffff;
mad.lo.u32 fa4_l, fa4_c, {ws.LANES}, fa4_l;
"""


def _transferred(statement: Statement, vector: str) -> list[str]:
    """Registers of a tcgen05.ld or st, checked against its shape."""
    count = int(re.search(r"\.x(\d+)\.", statement.opcode)[1])
    registers = split_operands(vector.strip("{} "))
    if len(registers) != count:
        raise statement.refuse(f"{len(registers)} registers for {count} columns")
    return registers


def _load(statement: Statement) -> str:
    vector, address = statement.operands
    loads = [
        f"ld.global.b32 {register}, [fa4_at+{ws.COLUMN * column}];"
        for column, register in enumerate(_transferred(statement, vector))
    ]
    cell = f"mad.wide.u32 fa4_at, fa4_l, {ws.CELL}, %fa4_sm;"
    return "\n".join([_place(address), cell, *loads])


def _store(statement: Statement) -> str:
    address, vector = statement.operands
    registers = _transferred(statement, vector)
    if statement.modes.lazy:
        return _hold_back(address, registers)
    stores = [
        f"st.global.b32 [fa4_at+{ws.COLUMN * column}], {register};"
        for column, register in enumerate(registers)
    ]
    cell = f"mad.wide.u32 fa4_at, fa4_l, {ws.CELL}, %fa4_sm;"
    return "\n".join([_place(address), cell, *stores])


def _hold_back(address: str, registers: list[str]) -> str:
    """Keep (cell, value) pairs in local memory for the thread's next wait."""
    lines = [
        _place(address),
        ".reg .pred fa4_p; .reg .b32 fa4_n; .reg .b64 fa4_to;",
        f"setp.gt.u32 fa4_p, %fa4_held, {PENDING - len(registers)};",
        "@!fa4_p bra FA4_ROOM;",
        _land(),
        "FA4_ROOM:",
        "mov.u64 fa4_at, fa4_pending;",
        "mad.wide.u32 fa4_at, %fa4_held, 8, fa4_at;",
    ]
    for column, register in enumerate(registers):
        lines.append(f"st.local.v2.b32 [fa4_at+{8 * column}], {{fa4_l, {register}}};")
        lines.append(f"add.u32 fa4_l, fa4_l, {ws.LANES};")
    return "\n".join([*lines, f"add.u32 %fa4_held, %fa4_held, {len(registers)};"])


def _land() -> str:
    """Store what was held back, oldest first."""
    return f"""{{
.reg .pred fa4_p; .reg .b32 fa4_i, fa4_cell, fa4_value; .reg .b64 fa4_from, fa4_to;
mov.b32 fa4_i, 0;
mov.u64 fa4_from, fa4_pending;
FA4_NEXT:
setp.ge.u32 fa4_p, fa4_i, %fa4_held;
@fa4_p bra FA4_LANDED;
ld.local.v2.b32 {{fa4_cell, fa4_value}}, [fa4_from];
mad.wide.u32 fa4_to, fa4_cell, {ws.CELL}, %fa4_sm;
st.global.b32 [fa4_to], fa4_value;
add.s64 fa4_from, fa4_from, 8;
add.u32 fa4_i, fa4_i, 1;
bra FA4_NEXT;
FA4_LANDED:
mov.b32 %fa4_held, 0;
}}"""


def _wait_for_stores(statement: Statement) -> str:
    return _land() if statement.modes.lazy else ""


def _push(what: str, operands: tuple[str, str, str, str], publish: bool) -> str:
    """Append an entry to the ring: D or mbarrier, instruction descriptor (b32), A, B (b64).

    One thread at a time issues to the tensor core, so the ring needs no lock; see `_same_warp`.
    """
    first, descriptor, a, b = operands
    return f"""
.reg .pred fa4_p; .reg .b32 fa4_n, fa4_x; .reg .b64 fa4_entry;
ld.relaxed.cta.global.u32 fa4_n, [%fa4_sm+{ws.ISSUED}];
and.b32 fa4_x, fa4_n, {ws.ENTRIES - 1};
mad.wide.u32 fa4_entry, fa4_x, {ws.ENTRY}, %fa4_sm;
FA4_FULL:
ld.acquire.cta.global.u32 fa4_x, [fa4_entry+{ws.RING + 4}];
setp.eq.u32 fa4_p, fa4_x, 0;
@fa4_p bra FA4_FREE;
st.release.cta.global.u32 [%fa4_sm+{ws.PUBLISHED}], fa4_n;
bra FA4_FULL;
FA4_FREE:
st.global.v4.b32 [fa4_entry+{ws.RING}], {{{what}, 4, {first}, {descriptor}}};
st.global.v2.b64 [fa4_entry+{ws.RING + 16}], {{{a}, {b}}};
add.u32 fa4_n, fa4_n, 1;
st.relaxed.cta.global.u32 [%fa4_sm+{ws.ISSUED}], fa4_n;
{f"st.release.cta.global.u32 [%fa4_sm+{ws.PUBLISHED}], fa4_n;" if publish else ""}
"""


def _same_warp() -> str:
    """Report a second warp that issues: the ring has one writer, and commits are per thread."""
    return f"""{{
.reg .pred fa4_p; .reg .b32 fa4_warp, fa4_before;
mov.u32 fa4_warp, %tid.x;
shr.u32 fa4_warp, fa4_warp, 5;
add.u32 fa4_warp, fa4_warp, 1;
ld.relaxed.cta.global.u32 fa4_before, [%fa4_sm+{ws.ISSUER}];
setp.eq.u32 fa4_p, fa4_before, fa4_warp;
@fa4_p bra FA4_SAME;
st.relaxed.cta.global.u32 [%fa4_sm+{ws.ISSUER}], fa4_warp;
setp.eq.u32 fa4_p, fa4_before, 0;
@fa4_p bra FA4_SAME;
sub.u32 fa4_warp, fa4_warp, 1;
sub.u32 fa4_before, fa4_before, 1;
st.global.v4.b32 [%fa4_sm+{ws.FAULT}], {{3, fa4_warp, fa4_before, 0}};
FA4_SAME:
}}"""


def _mma(statement: Statement) -> str:
    if len(statement.operands) != 5:
        raise statement.refuse("only D, A, B, the instruction descriptor and the predicate of D")
    d, a, b, descriptor, accumulate = statement.operands
    in_tensor_memory = a.startswith("[")
    flags = ws.MMA | (ws.A_IN_TENSOR_MEMORY if in_tensor_memory else 0)
    lines = [
        ".reg .b32 fa4_d, fa4_i, fa4_what, fa4_a32; .reg .b64 fa4_a64;",
        _address(d, "fa4_d"),
        f"mov.b32 fa4_i, {descriptor};",
        f"selp.b32 fa4_what, {flags | ws.ACCUMULATE}, {flags}, {accumulate};",
    ]
    if in_tensor_memory:
        lines += [_address(a, "fa4_a32"), "cvt.u64.u32 fa4_a64, fa4_a32;"]
        a = "fa4_a64"
    entry = _push("fa4_what", ("fa4_d", "fa4_i", a, b), publish=not statement.modes.defer)
    return "\n".join([_same_warp(), *lines, entry])


def _commit(statement: Statement) -> str:
    (barrier,) = statement.operands
    lines = [
        ".reg .b32 fa4_barrier; .reg .b64 fa4_none;",
        _address(barrier, "fa4_barrier"),
        "mov.b64 fa4_none, 0;",
    ]
    operands = ("fa4_barrier", "0", "fa4_none", "fa4_none")
    return "\n".join([_same_warp(), *lines, _push(str(ws.COMMIT), operands, publish=True)])


def _allocate(statement: Statement) -> str:
    """The whole tensor memory, whatever is asked for, once it is free."""
    address, _columns = statement.operands
    poison = f"""
mov.b64 fa4_at, %fa4_sm;
mad.wide.u32 fa4_at, fa4_x, 16, fa4_at;
mov.b32 fa4_x, 0;
FA4_POISON:
st.global.v4.b32 [fa4_at], {{-1, -1, -1, -1}};
add.s64 fa4_at, fa4_at, 512;
add.u32 fa4_x, fa4_x, 512;
setp.lt.u32 fa4_p, fa4_x, {ws.TENSOR_MEMORY};
@fa4_p bra FA4_POISON;
bar.warp.sync -1;
"""
    return f"""
.reg .pred fa4_p, fa4_first; .reg .b32 fa4_x, fa4_to; .reg .b64 fa4_at;
{_address(address, "fa4_to")}
mov.u32 fa4_x, %laneid;
setp.eq.u32 fa4_first, fa4_x, 0;
@!fa4_first bra FA4_TAKEN;
FA4_TAKE:
atom.acq_rel.gpu.global.cas.b32 fa4_x, [%fa4_sm+{ws.OWNER}], 0, -1;
setp.ne.u32 fa4_p, fa4_x, 0;
@fa4_p bra FA4_TAKE;
st.global.b32 [%fa4_sm+{ws.ISSUER}], 0;
st.global.v2.b32 [%fa4_sm+{ws.ISSUED}], {{0, 0}};
st.release.gpu.global.u32 [%fa4_sm+{ws.OWNER}], %fa4_me;
st.shared.b32 [fa4_to], 0;
FA4_TAKEN:
bar.warp.sync -1;
mov.u32 fa4_x, %laneid;
{poison if statement.modes.poison else ""}
"""


def _deallocate(_statement: Statement) -> str:
    """Ask the tensor core to stop, which then frees the tensor memory."""
    entry = _push(str(ws.STOP), ("0", "0", "fa4_none", "fa4_none"), publish=True)
    return f"""
.reg .pred fa4_first; .reg .b32 fa4_lane; .reg .b64 fa4_none;
mov.b64 fa4_none, 0;
mov.u32 fa4_lane, %laneid;
setp.eq.u32 fa4_first, fa4_lane, 0;
bar.warp.sync -1;
@!fa4_first bra FA4_STOPPED;
{{
{entry}
}}
FA4_STOPPED:
bar.warp.sync -1;
"""


def _whole_cta(statement: Statement) -> str:
    """A barrier of all threads: of all that the kernel knows, not of the tensor core's."""
    if len(statement.operands) > 1:
        return f"{statement.opcode} {', '.join(statement.operands)};"
    return f"{statement.opcode} {statement.operands[0]}, {statement.threads};"


# What is replaced, by a pattern of the whole opcode.
COVERED: dict[str, Callable[[Statement], str]] = {
    r"(add|sub|mul|fma)(\.r[nzmp])?(\.ftz)?(\.sat)?\.f32x2": _packed,
    r"fma(\.r[nzmp])?(\.sat)?\.f32\.b?f16": _mixed,
    r"tcgen05\.ld\.sync\.aligned\.32x32b\.x\d+\.b32": _load,
    r"tcgen05\.st\.sync\.aligned\.32x32b\.x\d+\.b32": _store,
    r"tcgen05\.wait::ld\.sync\.aligned": _nothing,
    r"tcgen05\.wait::st\.sync\.aligned": _wait_for_stores,
    r"tcgen05\.fence::(before|after)_thread_sync": _nothing,
    r"tcgen05\.mma\.cta_group::1\.kind::f16(\.collector::a::\w+)?": _mma,
    r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one(\.shared::cluster)?\.b64": _commit,
    r"tcgen05\.alloc\.cta_group::1\.sync\.aligned(\.shared::cta)?\.b32": _allocate,
    r"tcgen05\.dealloc\.cta_group::1\.sync\.aligned\.b32": _deallocate,
    r"tcgen05\.relinquish_alloc_permit\.cta_group::1\.sync\.aligned": _nothing,
    r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32": _nothing,  # its registers are the tensor core's
    r"bar(\.cta)?\.(sync|arrive|red)\..*|bar(rier)?(\.cta)?\.sync(\.aligned)?": _whole_cta,
}
# No other instruction of these may stay: Hopper has none of them.
BLACKWELL_ONLY = re.compile(
    r"tcgen05\..*|.*\.f32x2|(add|sub|fma)\..*\.f32\.b?f16|clusterlaunchcontrol\..*|.*cta_group::.*"
)
CLUSTER = re.compile(r"barrier\.cluster\..*")


def replacement(statement: Statement) -> str | None:
    """PTX for sm_90a, or None where the instruction stays. Raises NotCovered."""
    for pattern, replace in COVERED.items():
        if re.fullmatch(pattern, statement.opcode):
            return replace(statement)
    if BLACKWELL_ONLY.fullmatch(statement.opcode):
        raise statement.refuse("this sm_100a instruction is not covered on Hopper")
    if CLUSTER.fullmatch(statement.opcode):
        raise statement.refuse("the tensor core's warps would have to arrive, too")
    return None
