"""setp, set, selp, slct."""

from __future__ import annotations

from ..ptx.syntax import Instruction, Pair
from .emitter import KIND, Emitter
from .floating import narrow
from .handlers import handles

_SYMBOL = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_COMBINE = {"and": "&", "or": "|", "xor": "^"}
_FLOATS = ("f16", "bf16", "f32", "f64")


def _comparison(emitter: Emitter, instruction: Instruction, kind: str) -> str:
    """The comparison of operands 1 and 2, NaN rules included."""
    relation = instruction.parts[1]
    if kind in ("f16", "bf16"):
        a, b = (narrow(emitter, o, kind) for o in instruction.operands[1:3])
        a, b = emitter.temporary(a), emitter.temporary(b)
    else:
        a, b = (emitter.read(o, KIND[kind]) for o in instruction.operands[1:3])
    if "ftz" in instruction.parts:
        a, b = emitter.temporary(f"ftz({a})"), emitter.temporary(f"ftz({b})")
    floating = kind in _FLOATS
    if relation == "ne" and floating:
        return f"(({a}<{b})|({a}>{b}))"
    if relation in _SYMBOL:
        return f"({a}{_SYMBOL[relation]}{b})"
    if relation == "num":
        return f"(({a}=={a})&({b}=={b}))"
    if relation == "nan":
        return f"(({a}!={a})|({b}!={b}))"
    if relation == "neu":
        return f"({a}!={b})"
    if relation == "equ":
        return f"(~(({a}<{b})|({a}>{b})))"
    opposite = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}.get(relation)
    if opposite is None:
        raise emitter.unsupported(f"comparison {relation}")
    return f"(~({a}{opposite}{b}))"


@handles("setp")
def _setp(emitter: Emitter, instruction: Instruction) -> None:
    parts, operands = instruction.parts, instruction.operands
    if parts[-1] in ("f16x2", "bf16x2"):
        raise emitter.unsupported("packed comparison")
    compared = _comparison(emitter, instruction, parts[-1])
    combine = next((_COMBINE[p] for p in parts[2:] if p in _COMBINE), None)
    other = emitter.read(operands[3], "p") if combine else None
    value = f"({compared}{combine}{other})" if combine else compared
    target = operands[0]
    if not isinstance(target, Pair):
        return emitter.write(target, value, "p")
    compared = emitter.temporary(compared)
    inverse = f"((~{compared}){combine}{other})" if combine else f"(~{compared})"
    inverse = emitter.temporary(inverse)
    value = f"({compared}{combine}{other})" if combine else compared
    emitter.write(target.first, value, "p")
    return emitter.write(target.second, inverse, "p")


@handles("set")
def _set(emitter: Emitter, instruction: Instruction) -> None:
    result, kind = instruction.parts[-2:]
    value = _comparison(emitter, instruction, kind)
    one = emitter.constant(0x3F800000, "f") if result == "f32" else emitter.constant(-1, "u")
    zero = emitter.constant(0, "f" if result == "f32" else "u")
    emitter.write(instruction.operands[0], f"where({value},{one},{zero})", KIND[result])


@handles("selp")
def _selp(emitter: Emitter, instruction: Instruction) -> None:
    target, a, b, chosen = instruction.operands
    kind = KIND[instruction.parts[-1]]
    condition = emitter.read(chosen, "p")
    storage = emitter.registers.storage[target.name]
    if storage == "x":
        (a_low, a_high), (b_low, b_high) = emitter.read_pair(a), emitter.read_pair(b)
        condition = emitter.temporary(condition)
        return emitter.write_pair(
            target,
            f"where({condition},{a_low},{b_low})",
            f"where({condition},{a_high},{b_high})",
        )
    if storage in "fud" and kind in ("u", "s", "f"):
        kind = storage
    value = f"where({condition},{emitter.read(a, kind)},{emitter.read(b, kind)})"
    return emitter.write(target, value, kind)


@handles("slct")
def _slct(emitter: Emitter, instruction: Instruction) -> None:
    target, a, b, sign = instruction.operands
    kind, tested = (KIND[p] for p in instruction.parts[-2:])
    condition = f"({emitter.read(sign, tested)}>=0)"
    emitter.write(
        target, f"where({condition},{emitter.read(a, kind)},{emitter.read(b, kind)})", kind
    )
