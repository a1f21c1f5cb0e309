"""Integer and logic instructions. Roots shared with floats are dispatched here by type."""

from __future__ import annotations

from ..ptx.syntax import Immediate, Instruction
from .emitter import KIND, Emitter
from .floating import emit_arithmetic, is_floating
from .handlers import handles

_OPERATOR = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_WIDER = {"h": "u", "sh": "s", "u": "l", "s": "sl"}
_DTYPE = {"u": "U4", "s": "I4", "l": "U8", "sl": "I8"}
_UNSIGNED = {"sh": "h", "s": "u", "sl": "l"}


@handles("add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "neg", "abs")
def _arithmetic(emitter: Emitter, instruction: Instruction) -> None:
    if is_floating(instruction.parts):
        return emit_arithmetic(emitter, instruction)
    root, parts, operands = instruction.root, instruction.parts, instruction.operands
    kind = KIND[parts[-1]]
    if "cc" in parts or root in ("addc", "subc"):
        raise emitter.unsupported("carry")
    if root in ("mul", "mad"):
        return _multiply(emitter, instruction, kind)
    if root in ("add", "sub"):
        if "sat" in parts:
            raise emitter.unsupported("saturating integers")
        kind = _UNSIGNED.get(kind, kind)  # same bits, and no conversion of the registers
        a, b = (emitter.read(o, kind) for o in operands[1:])
        return emitter.write(operands[0], f"({a}{_OPERATOR[root]}{b})", kind)
    values = [emitter.read(o, kind) for o in operands[1:]]
    if root in ("div", "rem"):
        function = "divide" if root == "div" else "remainder"
        return emitter.write(operands[0], f"{function}({values[0]},{values[1]})", kind)
    if root == "neg":
        return emitter.write(operands[0], f"(-{values[0]})", kind)
    if root == "abs":
        return emitter.write(operands[0], f"np.abs({values[0]})", kind)
    value = values[0]
    for other in values[1:]:
        value = f"np.{root}imum({value},{other})"
    if "relu" in parts:
        value = f"np.maximum({value},0)"
    return emitter.write(operands[0], value, kind)


def _multiply(emitter: Emitter, instruction: Instruction, kind: str) -> None:
    parts, operands = instruction.parts, instruction.operands
    if "wide" in parts:
        wide = _WIDER[kind]
        a, b = (emitter.read(o, kind) for o in operands[1:3])
        value = f"({a}.astype({_DTYPE[wide]})*{b}.astype({_DTYPE[wide]}))"
        if instruction.root == "mad":
            value = f"({value}+{emitter.read(operands[3], wide)})"
        return emitter.write(operands[0], value, wide)
    if "hi" in parts:
        a, b = (emitter.read(o, kind) for o in operands[1:3])
        value = _high(a, b, kind)
        if instruction.root == "mad":
            value = f"({value}+{emitter.read(operands[3], kind)})"
        return emitter.write(operands[0], value, kind)
    kind = _UNSIGNED.get(kind, kind)
    a, b = (emitter.read(o, kind) for o in operands[1:3])
    value = f"({a}*{b})"
    if instruction.root == "mad":
        value = f"({value}+{emitter.read(operands[3], kind)})"
    return emitter.write(operands[0], value, kind)


def _high(a: str, b: str, kind: str) -> str:
    if kind == "l":
        return f"mul_hi64({a},{b})"
    if kind == "sl":
        return f"mul_hi64_signed({a}.view(U8),{b}.view(U8)).view(I8)"
    wide, narrow = {
        "u": ("U8", "U4"),
        "s": ("I8", "I4"),
        "h": ("U4", "U2"),
        "sh": ("I4", "I2"),
    }[kind]
    bits = 32 if kind in "us" else 16
    return f"(({a}.astype({wide})*{b}.astype({wide}))>>{wide}({bits})).astype({narrow})"


@handles("and", "or", "xor", "not", "cnot")
def _logic(emitter: Emitter, instruction: Instruction) -> None:
    kind = KIND[instruction.parts[-1]]
    target, *sources = instruction.operands
    values = [emitter.read(o, kind) for o in sources]
    if instruction.root == "not":
        return emitter.write(target, f"(~{values[0]})", kind)
    if instruction.root == "cnot":
        return emitter.write(target, f"({values[0]}==0).astype({values[0]}.dtype)", kind)
    return emitter.write(target, f"({values[0]}{_OPERATOR[instruction.root]}{values[1]})", kind)


@handles("shl", "shr")
def _shift(emitter: Emitter, instruction: Instruction) -> None:
    kind = KIND[instruction.parts[-1]]
    if instruction.root == "shl":
        kind = _UNSIGNED.get(kind, kind)
    target, source, count = instruction.operands
    value = emitter.read(source, kind)
    width = {"h": 16, "sh": 16, "u": 32, "s": 32, "l": 64, "sl": 64}[kind]
    if isinstance(count, Immediate) and 0 <= count.value < width:
        amount = emitter.constant(count.value, kind)
        sign = "<<" if instruction.root == "shl" else ">>"
        return emitter.write(target, f"({value}{sign}{amount})", kind)
    function = "shift_left" if instruction.root == "shl" else "shift_right"
    return emitter.write(target, f"{function}({value},{emitter.read(count, 'u')})", kind)


@handles("shf")
def _funnel(emitter: Emitter, instruction: Instruction) -> None:
    target, *sources = instruction.operands
    low, high, count = (emitter.read(o, "u") for o in sources)
    left, wrap = "l" in instruction.parts, "wrap" in instruction.parts
    emitter.write(target, f"funnel({low},{high},{count},{left},{wrap})", "u")


@handles("lop3")
def _lop3(emitter: Emitter, instruction: Instruction) -> None:
    """Any three-input function, as a sum of the minterms of its truth table."""
    if "BOOL" in instruction.parts or len(instruction.operands) != 5:
        raise emitter.unsupported("lop3 with a predicate")
    target, *sources, table = instruction.operands
    a, b, c = (emitter.temporary(emitter.read(o, "u")) for o in sources)
    terms = []
    for row in range(8):
        if table.value >> row & 1:
            signs = ("" if row & 4 else "~", "" if row & 2 else "~", "" if row & 1 else "~")
            terms.append(f"({signs[0]}{a}&{signs[1]}{b}&{signs[2]}{c})")
    value = f"({'|'.join(terms)})" if terms else emitter.constant(0, "u")
    emitter.write(target, value, "u")


@handles("prmt")
def _prmt(emitter: Emitter, instruction: Instruction) -> None:
    if len(instruction.parts) > 2:
        raise emitter.unsupported("prmt mode")
    target, *sources = instruction.operands
    a, b, c = (emitter.read(o, "u") for o in sources)
    emitter.write(target, f"permute({a},{b},{c})", "u")


@handles("popc", "clz", "brev", "bfind")
def _bits(emitter: Emitter, instruction: Instruction) -> None:
    kind = KIND[instruction.parts[-1]]
    target, source = instruction.operands
    value = emitter.read(source, kind)
    if instruction.root == "popc":
        return emitter.write(target, f"np.bitwise_count({value}).astype(U4)", "u")
    if instruction.root == "clz":
        return emitter.write(target, f"leading_zeros({value})", "u")
    if instruction.root == "brev":
        return emitter.write(target, f"bit_reverse({value})", kind)
    if "shiftamt" in instruction.parts:
        raise emitter.unsupported("bfind.shiftamt")
    return emitter.write(target, f"find_leading_bit({value})", "u")


@handles("bfe", "bfi")
def _fields(emitter: Emitter, instruction: Instruction) -> None:
    kind = KIND[instruction.parts[-1]]
    target, *sources = instruction.operands
    values = [emitter.read(o, kind) for o in sources[:-2]]
    values += [emitter.read(o, "u") for o in sources[-2:]]
    function = "extract_bits" if instruction.root == "bfe" else "insert_bits"
    emitter.write(target, f"{function}({','.join(values)})", kind)


@handles("dp4a")
def _dot(emitter: Emitter, instruction: Instruction) -> None:
    a_type, b_type = instruction.parts[1:3]
    target, a, b, c = instruction.operands
    dtypes = {"u32": "U1", "s32": "I1"}
    left = f"{emitter.read(a, 'u')}.view({dtypes[a_type]}).reshape(-1,4).astype(I4)"
    right = f"{emitter.read(b, 'u')}.view({dtypes[b_type]}).reshape(-1,4).astype(I4)"
    emitter.write(target, f"(({left}*{right}).sum(1).astype(I4)+{emitter.read(c, 's')})", "s")
