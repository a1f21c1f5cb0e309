"""PTX of a kernel for sm_100a -> PTX for sm_90a with a software tensor core beside it.

What changes: the instructions in instructions.py; the kernel gets two parameters and a prologue,
and, if it has tensor memory, its CTAs 128 more threads, which run tensor_core.py. All else stays:
TMA, mbarriers, named barriers, warps, shared memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count

from fa4.emulator.ptx.module import find_entry
from fa4.emulator.ptx.operands import split_operands
from fa4.on_hopper import tensor_core
from fa4.on_hopper import workspace as ws
from fa4.on_hopper.instructions import PENDING, NotCovered, Statement, replacement
from fa4.on_hopper.modes import Modes

PTX_VERSION = "8.6"  # the first with all that Hopper runs here; drivers refuse ones newer than they

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_STATEMENT = re.compile(
    r"(?<![\w.%$])(?<!::)(?P<guard>@!?[%\w$]+\s+)?(?P<opcode>[a-z]\w*(?:\.[\w:]+)+)"
    r"(?P<operands>(?:\s[^;]*)?);"
)
# Before these a warp may sleep in mode skew.
_NAPPING = re.compile(
    r"mbarrier\.(try_wait|arrive)|bar(rier)?(\.cta)?\.(sync|arrive)|bar\.warp\.sync"
    r"|cp\.async\.bulk\.tensor|tcgen05\.(ld|st|commit|wait)"
)
_KERNEL = re.compile(r"(\.visible\s+|\.weak\s+)?\.entry\s+[^{]*\{")
_THREADS = re.compile(r"\.reqntid\s+(\d+)\b(?:\s*,\s*1\b)*(?!\s*,)")


@dataclass(frozen=True)
class Rewritten:
    """`entry` of module `ptx` takes the kernel's parameters, then workspace (u64) and seed (u32).

    It is launched with `threads` threads per CTA, one-dimensional, of which the kernel knows
    `own_threads`.
    """

    ptx: str
    entry: str
    threads: int
    own_threads: int
    params: int  # number of the kernel's own


def rewrite(ptx: str, entry: str, modes: Modes | None = None) -> Rewritten:
    """Rewrite kernel `entry` of a PTX module.

    Raises NotCovered, which names the PTX line, for what is not covered.
    """
    text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), ptx.rstrip("\0"))
    header = find_entry(text, entry)
    own = _threads(text[header.start : header.body])
    end = _closing_brace(text, header.body)
    more = tensor_core.THREADS if "tcgen05." in text[header.body : end] else 0
    rewriter = _Rewriter(text, modes or Modes(), own, more)
    parts = (
        _retarget(_without_kernels(text[: header.start])),
        _signature(text[header.start : header.body], entry, more),
        rewriter.prologue(),
        rewriter.body(header.body, end),
        tensor_core.program(own, rewriter.nap()) if more else "",
        _without_kernels(text[end:]),
    )
    return Rewritten("".join(parts), entry, own + more, own, len(header.params))


def _without_kernels(text: str) -> str:
    """A part of the module without the kernels in it, which are not for Hopper."""
    pieces, last = [], 0
    for kernel in _KERNEL.finditer(text):
        pieces.append(text[last : kernel.start()])
        last = _closing_brace(text, kernel.end()) + 1
    return "".join([*pieces, text[last:]])


def _retarget(text: str) -> str:
    """The module's directives."""
    text = re.sub(r"\.version\s+[\d.]+", f".version {PTX_VERSION}", text, count=1)
    return re.sub(r"\.target\s+sm_\w+", ".target sm_90a", text, count=1)


def _threads(signature: str) -> int:
    found = _THREADS.search(signature)
    if not found:
        raise NotCovered("the kernel has no .reqntid n, 1, 1: its number of threads is not known")
    if int(found[1]) % 128 or int(found[1]) + tensor_core.THREADS > 1024:
        raise NotCovered(f"{found[0]}: a multiple of 128 threads up to 896 is covered")
    return int(found[1])


def _signature(text: str, entry: str, more: int) -> str:
    """The kernel's header with two parameters and `more` threads."""
    extra = ".param .u64 fa4_workspace, .param .u32 fa4_seed"
    match = re.search(rf"\.entry\s+{re.escape(entry)}\s*\((.*?)\)", text, re.S)
    if match is None:
        text = text.replace(entry, f"{entry}({extra})", 1)
    else:
        own = match[1].rstrip()
        inside = f"{own},\n{extra}" if own.strip() else extra
        text = text[: match.start(1)] + inside + text[match.end(1) :]
    threads = _threads(text) + more
    text = re.sub(r"\.maxnreg\s+\d+", "", text)  # was for fewer threads
    return _THREADS.sub(f".reqntid {threads}, 1, 1", text)


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return start + brace.start()
    raise NotCovered("the kernel's closing brace is missing")


class _Rewriter:
    """The body of one kernel."""

    def __init__(self, text: str, modes: Modes, threads: int, more: int) -> None:
        self.text, self.modes, self.threads, self.more = text, modes, threads, more
        self.skips, self.naps = count(), count(1)
        self.allocations = 0

    def body(self, start: int, end: int) -> str:
        """The kernel's own code, between its braces."""
        special = re.search(r"%(nwarpid|ntid)\b", self.text[start:end])
        if special:
            raise NotCovered(f"the kernel reads {special[0]}, which counts the tensor core's warps")
        pieces, last = [], start
        for match in _STATEMENT.finditer(self.text, start, end):
            changed = self._statement(match)
            if changed is not None:
                pieces += [self.text[last : match.start()], changed]
                last = match.end()
        if self.more and self.allocations != 1:
            raise NotCovered(f"{self.allocations} tcgen05.alloc in the kernel; covered: one")
        return "".join([*pieces, self.text[last:end]])

    def _statement(self, match: re.Match) -> str | None:
        opcode, operands = match["opcode"], match["operands"].strip()
        statement = Statement(
            opcode,
            tuple(split_operands(operands)),
            self.text.count("\n", 0, match.start("opcode")) + 1,
            self.modes,
            self.threads,
        )
        changed = replacement(statement)
        self.allocations += opcode.startswith("tcgen05.alloc")
        nap = self.nap() if _NAPPING.match(opcode) else ""
        if changed is None:
            return f"{nap}{match.group()}" if nap else None
        return nap + self._guarded(match["guard"], changed)

    def _guarded(self, guard: str | None, code: str) -> str:
        if not code.strip():
            return ""
        if not guard:
            return f"{{\n{code}\n}}"
        predicate = guard.strip()[1:]
        inverse = predicate[1:] if predicate.startswith("!") else f"!{predicate}"
        label = f"FA4_SKIP_{next(self.skips)}"
        return f"@{inverse} bra {label};\n{{\n{code}\n}}\n{label}:\n"

    def prologue(self) -> str:
        """Sends the threads that are more to the tensor core and sets the %fa4_ registers."""
        return f"""
.reg .b64 %fa4_sm;
.reg .b32 %fa4_me, %fa4_nap, %fa4_held;
{f".local .align 8 .b8 fa4_pending[{8 * PENDING}];" if self.modes.lazy else ""}
{{
.reg .pred p; .reg .b32 x, y;
ld.param.u64 %fa4_sm, [fa4_workspace];
mov.u32 x, %smid;
mad.wide.u32 %fa4_sm, x, {ws.STRIDE}, %fa4_sm;
mov.b32 %fa4_held, 0;
mov.u32 x, %ctaid.z;
mov.u32 y, %nctaid.y;
mul.lo.u32 x, x, y;
mov.u32 y, %ctaid.y;
add.u32 x, x, y;
mov.u32 y, %nctaid.x;
mul.lo.u32 x, x, y;
mov.u32 y, %ctaid.x;
add.u32 x, x, y;
add.u32 %fa4_me, x, 1;
{self._choose_slow_warps() if self.modes.nap else ""}
mov.u32 x, %tid.x;
setp.ge.u32 p, x, {self.threads};
{f"@p bra {tensor_core.LABEL};" if self.more else ""}
{self._poison() if self.modes.poison else ""}
}}
"""

    def _choose_slow_warps(self) -> str:
        """%fa4_nap: naps of this warp are shorter than so many ns, or 0. In half of the CTAs one
        warp is slow, in a quarter four neighbours, in a quarter each with probability one half."""
        warps = (self.threads + self.more) // 32
        return f"""
.reg .pred slow, same; .reg .b32 h, kind, victim, warp, own;
ld.param.u32 h, [fa4_seed];
mad.lo.u32 h, h, 0x9E3779B1, %fa4_me;
{_mixed("h")}
and.b32 kind, h, 3;
shr.u32 victim, h, 2;
rem.u32 victim, victim, {warps};
mov.u32 warp, %tid.x;
shr.u32 warp, warp, 5;
mad.lo.u32 own, warp, 0x27D4EB2F, h;
{_mixed("own")}
setp.eq.u32 slow, warp, victim;
setp.ne.u32 p, kind, 2;
@p bra FA4_NO_GROUP;
shr.u32 victim, victim, 2;
shr.u32 warp, warp, 2;
setp.eq.u32 slow, warp, victim;
FA4_NO_GROUP:
and.b32 own, own, 1;
setp.ne.u32 p, kind, 3;
@p bra FA4_CHOSEN;
setp.ne.u32 slow, own, 0;
FA4_CHOSEN:
selp.b32 %fa4_nap, {self.modes.nap}, 0, slow;
"""

    def _poison(self) -> str:
        """Dynamic shared memory as NaN, before the kernel's first instruction."""
        names = re.findall(r"\.extern\s+\.shared\s[^;]*?([\w$]+)\s*\[\s*\]\s*;", self.text)
        if not names:
            return ""
        return f"""
.reg .b32 at, to, end;
mov.u32 to, %dynamic_smem_size;
mov.u32 at, %tid.x;
shl.b32 at, at, 4;
mov.b32 end, {names[0]};
add.u32 to, to, end;
add.u32 at, at, end;
FA4_FILL:
add.u32 x, at, 16;
setp.gt.u32 p, x, to;
@p bra FA4_FILLED;
st.shared.v4.b32 [at], {{-1, -1, -1, -1}};
add.u32 at, at, {16 * self.threads};
bra FA4_FILL;
FA4_FILLED:
fence.proxy.async.shared::cta;
bar.sync 0, {self.threads};
"""

    def nap(self) -> str:
        """PTX of a random nap of a slow warp; empty when nobody sleeps.

        Two low bits of a random number say whether; the number as a fraction, which share of
        %fa4_nap.
        """
        if not self.modes.nap:
            return ""
        salt = next(self.naps) * 0x9E3779B1 & 0xFFFFFFFF
        return f"""{{
.reg .pred fa4_p; .reg .b32 fa4_n, fa4_m;
mov.u32 fa4_n, %clock;
xor.b32 fa4_n, fa4_n, {salt};
{_mixed("fa4_n", "fa4_m")}
and.b32 fa4_m, fa4_n, 3;
mul.hi.u32 fa4_n, fa4_n, %fa4_nap;
setp.eq.u32 fa4_p, fa4_m, 0;
@fa4_p nanosleep.u32 fa4_n;
}}
"""


def _mixed(register: str, spare: str = "y") -> str:
    """A bijective hash of a 32-bit register (the finaliser of MurmurHash3)."""
    return f"""shr.u32 {spare}, {register}, 16;
xor.b32 {register}, {register}, {spare};
mul.lo.u32 {register}, {register}, 0x85EBCA6B;
shr.u32 {spare}, {register}, 13;
xor.b32 {register}, {register}, {spare};
mul.lo.u32 {register}, {register}, 0xC2B2AE35;
shr.u32 {spare}, {register}, 16;
xor.b32 {register}, {register}, {spare};"""
