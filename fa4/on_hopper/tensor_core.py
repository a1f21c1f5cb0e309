"""The software tensor core: PTX that four warps of their own run beside the kernel's.

They take entries from the ring in order, so that an MMA is as asynchronous to the kernel's warps as
on hardware. Warp w owns lanes 32 w to 32 w + 31, which are rows of D and of an A in tensor memory:
the four need no order among themselves but at a commit, where the last one signals.

An MMA is M 128, N, K 16: per warp two tiles of 16 rows, in steps of 16 columns, with `mma.sync`
m16n8k16 and operands by `ldmatrix`. Fragments (PTX ISA): with g = lane / 4 and t = lane % 4 a
thread holds of D rows g and g + 8, columns 2 t and 2 t + 1; of A the same rows, words t and t + 4.
"""

from __future__ import annotations

from fa4.on_hopper import workspace as ws

THREADS = 128
LABEL = "FA4_TENSOR_CORE"

# Instruction descriptor (PTX ISA, tcgen05 "Instruction descriptor"): all but formats, major-ness
# and N / 16 must be as here, M 128 and D float32.
_VARIABLE = 1 << 7 | 1 << 10 | 0b11 << 15 | 0b11111 << 18
_FIXED = 8 << 24 | 1 << 4
_A_MN_MAJOR, _B_MN_MAJOR = 1 << 15, 1 << 16


def program(threads: int, nap: str) -> str:
    """PTX of the tensor core's warps, whose first thread is number `threads`.

    Registers %fa4_sm (u64, this SM's workspace) and %fa4_me (u32, the CTA's number) are set. `nap`
    is PTX that may sleep before an entry.
    """
    return f"""
{LABEL}:
{{
.reg .pred p, keep, a_in_tmem, bfloat, swizzled, mn, a_mn, b_mn, first;
.reg .b32 x, lane, warp, g, t, r, odd, upper, head, what, left, d, idesc, n, low, high;
.reg .b32 leading, stride, swizzle, width, group, place, b0, b1, b2, b3;
.reg .b32 a_base, a_half, a_step, a_shift, a_inner, a_mask;
.reg .b32 b_base, b_half, b_step, b_shift, b_inner, b_mask;
.reg .b32 a<8>;
.reg .f32 c<16>;
.reg .b64 entry, a, b, row, from, to, state;
mov.u32 lane, %laneid;
mov.u32 warp, %tid.x;
sub.u32 warp, warp, {threads};
shr.u32 warp, warp, 5;
setp.eq.u32 first, lane, 0;
shr.u32 g, lane, 2;
and.b32 t, lane, 3;
and.b32 r, lane, 7;
bfe.u32 odd, lane, 3, 1;
shr.u32 upper, lane, 4;
mad.lo.u32 x, warp, 32, g;
mad.wide.u32 row, x, {ws.CELL}, %fa4_sm;
mov.b32 head, 0;
START:
ld.acquire.gpu.global.u32 x, [%fa4_sm+{ws.OWNER}];
setp.eq.u32 p, x, %fa4_me;
@p bra NEXT;
nanosleep.u32 100;
bra START;
NEXT:
ld.acquire.cta.global.u32 x, [%fa4_sm+{ws.PUBLISHED}];
setp.ne.u32 p, x, head;
@p bra TAKE;
nanosleep.u32 50;
bra NEXT;
TAKE:
bar.warp.sync -1;
and.b32 x, head, {ws.ENTRIES - 1};
mad.wide.u32 entry, x, {ws.ENTRY}, %fa4_sm;
ld.global.v4.b32 {{what, left, d, idesc}}, [entry+{ws.RING}];
ld.global.v2.b64 {{a, b}}, [entry+{ws.RING + 16}];
add.u32 head, head, 1;
{nap}
and.b32 x, what, 3;
setp.ne.u32 p, x, {ws.MMA};
@p bra COMPLETE;
{_multiply()}
COMPLETE:
bar.warp.sync -1;
@!first bra RELEASED;
atom.acq_rel.cta.global.add.u32 left, [entry+{ws.RING + 4}], -1;
setp.ne.u32 p, left, 1;
@p bra RELEASED;
setp.ne.u32 p, what, {ws.COMMIT};
@p bra SIGNALLED;
mbarrier.arrive.shared.b64 state, [d];
SIGNALLED:
setp.ne.u32 p, what, {ws.STOP};
@p bra RELEASED;
st.release.gpu.global.u32 [%fa4_sm+{ws.OWNER}], 0;
RELEASED:
bar.warp.sync -1;
setp.ne.u32 p, what, {ws.STOP};
@p bra NEXT;
ret;
}}
"""


def _multiply() -> str:
    """One MMA, up to COMPLETE."""
    return f"""
and.b32 x, idesc, {0xFFFFFFFF & ~_VARIABLE};
setp.ne.u32 p, x, {_FIXED};
@p bra BAD_INSTRUCTION;
shr.u32 x, idesc, 3;
xor.b32 x, x, idesc;
and.b32 x, x, {1 << 7};
setp.ne.u32 p, x, 0;
@p bra BAD_INSTRUCTION;
bfe.u32 n, idesc, 18, 5;
setp.eq.u32 p, n, 0;
@p bra BAD_INSTRUCTION;
and.b32 x, idesc, {1 << 7};
setp.ne.u32 bfloat, x, 0;
and.b32 x, what, {ws.ACCUMULATE};
setp.ne.u32 keep, x, 0;
and.b32 x, what, {ws.A_IN_TENSOR_MEMORY};
setp.ne.u32 a_in_tmem, x, 0;
{_operand("b", _B_MN_MAJOR, half="odd")}
@a_in_tmem bra A_FROM_TENSOR_MEMORY;
{_operand("a", _A_MN_MAJOR, half="upper")}
mad.lo.u32 group, warp, 4, odd;
{_load_matrices("a", "a0, a1, a2, a3")}
add.u32 group, group, 2;
{_load_matrices("a", "a4, a5, a6, a7")}
bra COLUMNS;
A_FROM_TENSOR_MEMORY:
cvt.u32.u64 x, a;
add.u32 x, x, t;
mad.wide.u32 from, x, {ws.COLUMN}, row;
{_a_fragments()}
COLUMNS:
shl.b32 x, t, 1;
add.u32 x, x, d;
mad.wide.u32 to, x, {ws.COLUMN}, row;
mov.b32 group, upper;
STEP:
{_load_matrices("b", "b0, b1, b2, b3")}
{_accumulators("mov.f32 c{i}, 0f00000000; @keep ld.global.f32 c{i}, [to+{offset}];")}
@bfloat bra BFLOAT;
{_products("f16")}
bra STORE;
BFLOAT:
{_products("bf16")}
STORE:
{_accumulators("st.global.f32 [to+{offset}], c{i};")}
add.s64 to, to, {16 * ws.COLUMN};
add.u32 group, group, 2;
sub.u32 n, n, 1;
setp.ne.u32 p, n, 0;
@p bra STEP;
bra COMPLETE;
BAD_INSTRUCTION:
st.global.v4.b32 [%fa4_sm+{ws.FAULT}], {{1, idesc, d, 0}};
bra COMPLETE;
BAD_DESCRIPTOR:
st.global.v4.b32 [%fa4_sm+{ws.FAULT}], {{2, low, high, 0}};
"""


def _operand(name: str, mn_major: int, half: str) -> str:
    """Decode shared-memory descriptor `name`, in units of 16 bytes.

    A core matrix is 8 rows of 16 bytes, (group of 8 rows of M or N, half of K); transposed if the
    operand is MN-major. Its row r lies, before the swizzle, at
        base + (group >> shift) * step + (group & inner),  base = start + r * width + half * k_step
    `half` is the register with the half of K whose address this thread gives to ldmatrix.
    Source: PTX ISA, "Matrix descriptor" and "Canonical layouts" of tcgen05.
    """
    return f"""
mov.b64 {{low, high}}, {name};
and.b32 x, high, 0x3fffc000;
setp.ne.u32 p, x, 0x4000;
@p bra BAD_DESCRIPTOR;
bfe.u32 leading, low, 16, 14;
and.b32 stride, high, 0x3fff;
shr.u32 swizzle, high, 29;
setp.ne.u32 swizzled, swizzle, 0;
sub.u32 swizzle, 8, swizzle;
shr.u32 swizzle, swizzle, 1;
selp.b32 swizzle, swizzle, 0, swizzled;
shl.b32 width, 1, swizzle;
sub.u32 {name}_mask, width, 1;
and.b32 x, idesc, {mn_major};
setp.ne.u32 {name}_mn, x, 0;
and.pred mn, swizzled, {name}_mn;
selp.b32 {name}_half, 1, leading, swizzled;
selp.b32 {name}_half, stride, {name}_half, mn;
selp.b32 {name}_step, leading, stride, mn;
selp.b32 {name}_shift, swizzle, 0, mn;
selp.b32 {name}_inner, {name}_mask, 0, mn;
and.b32 {name}_base, low, 0x3fff;
mad.lo.u32 {name}_base, r, width, {name}_base;
mad.lo.u32 {name}_base, {half}, {name}_half, {name}_base;
"""


def _load_matrices(name: str, registers: str) -> str:
    """Four core matrices of an operand; `group` is the one whose row this thread addresses."""
    load = "ldmatrix.sync.aligned.m8n8.x4{}.shared.b16 {{{}}}, [place];"
    return f"""
shr.u32 x, group, {name}_shift;
mad.lo.u32 place, x, {name}_step, {name}_base;
and.b32 x, group, {name}_inner;
add.u32 place, place, x;
shr.u32 x, place, 3;
and.b32 x, x, {name}_mask;
xor.b32 place, place, x;
shl.b32 place, place, 4;
@{name}_mn {load.format(".trans", registers)}
@!{name}_mn {load.format("", registers)}
"""


def _a_fragments() -> str:
    """A of two tiles from tensor memory at `from`: rows g, g + 8 by words t, t + 4."""
    return "\n".join(
        f"ld.global.b32 a{4 * tile + 2 * word + row}, "
        f"[from+{4 * word * ws.COLUMN + (16 * tile + 8 * row) * ws.CELL}];"
        for tile in (0, 1)
        for word in (0, 1)
        for row in (0, 1)
    )


def _accumulators(form: str) -> str:
    """`form` for each element of D: 2 tiles of rows x 2 of columns, 4 each."""
    return "\n".join(
        form.format(
            i=8 * tile + 4 * right + 2 * row + column,
            offset=(8 * right + column) * ws.COLUMN + (16 * tile + 8 * row) * ws.CELL,
        )
        for tile in (0, 1)
        for right in (0, 1)
        for row in (0, 1)
        for column in (0, 1)
    )


def _products(kind: str) -> str:
    lines = []
    for tile in (0, 1):
        for right in (0, 1):
            c = ", ".join(f"c{8 * tile + 4 * right + i}" for i in range(4))
            a = ", ".join(f"a{4 * tile + i}" for i in range(4))
            lines.append(
                f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
                f"{{{c}}}, {{{a}}}, {{b{2 * right}, b{2 * right + 1}}}, {{{c}}};"
            )
    return "\n".join(lines)
