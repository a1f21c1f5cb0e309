"""Float instructions: add, sub, mul, fma, div, min, max, the approximations."""

from __future__ import annotations

from ..ptx.syntax import Instruction, Operand
from .emitter import Emitter
from .handlers import handles

_OPERATOR = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_UNARY = {
    "ex2": "exp2({0})",
    "lg2": "log2({0})",
    "rcp": "(K_ONE/{0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "rsqrt({0})",
    "tanh": "tanh({0})",
    "sin": "sin({0})",
    "cos": "cos({0})",
}
_NARROW = ("f16", "bf16", "f16x2", "bf16x2")


def is_floating(parts: tuple[str, ...]) -> bool:
    return parts[-1] in ("f32", "f64", "f32x2", *_NARROW)


def emit_arithmetic(emitter: Emitter, instruction: Instruction) -> None:
    """add, sub, mul, fma, mad, div, min, max, neg, abs of any float type."""
    kind = instruction.parts[-1]
    if kind == "f32x2":
        _packed(emitter, instruction)
    elif kind in ("f16x2", "bf16x2"):
        _packed_narrow(emitter, instruction)
    elif kind in ("f16", "bf16") and "f32" in instruction.parts:
        _mixed(emitter, instruction)
    elif kind in ("f16", "bf16"):
        operands = [narrow(emitter, o, kind) for o in instruction.operands[1:]]
        emitter.write(
            instruction.operands[0],
            round_narrow(_compute(emitter, instruction, operands), kind),
            "h",
        )
    elif kind == "f64":
        operands = [emitter.read(o, "d") for o in instruction.operands[1:]]
        emitter.write(instruction.operands[0], _double(emitter, instruction, operands), "d")
    else:
        operands = [emitter.read(o, "f") for o in instruction.operands[1:]]
        emitter.write(instruction.operands[0], _compute(emitter, instruction, operands), "f")


def narrow(emitter: Emitter, operand: Operand, kind: str) -> str:
    """A 16-bit float operand as float32."""
    function = "from_bf16" if kind.startswith("bf16") else "from_f16"
    return f"{function}({emitter.read(operand, 'h')})"


def round_narrow(value: str, kind: str) -> str:
    """float32 to 16-bit float bits, as uint16."""
    function = "bf16_bits" if kind.startswith("bf16") else "f16_bits"
    return f"{function}({value}).astype(U2)"


def _compute(emitter: Emitter, instruction: Instruction, operands: list[str]) -> str:
    """A float32 result. Modifiers: rounding, ftz, sat, relu, NaN."""
    parts = instruction.parts
    if "ftz" in parts:
        operands = [f"ftz({operand})" for operand in operands]
    value = _round(emitter, instruction, operands)
    if "ftz" in parts:
        value = f"ftz({value})"
    if "sat" in parts:
        value = f"saturate({value})"
    if "relu" in parts:
        value = f"fmax({value},F4(0))"
    return value


def _round(emitter: Emitter, instruction: Instruction, operands: list[str]) -> str:
    root, parts = instruction.root, instruction.parts
    mode = next((p for p in parts if p in ("rm", "rp", "rz")), None)
    if root in ("fma", "mad"):
        if mode:
            return f"fma_directed({','.join(operands)},{mode!r})"
        a, b, c = (emitter.double(operand) for operand in operands)
        return f"({a}*{b}+{c}).astype(F4)"
    if root in ("min", "max"):
        return _extremum(instruction, operands)
    if root == "neg":
        return f"(-{operands[0]})"
    if root == "abs":
        return f"np.abs({operands[0]})"
    a, b = operands
    if mode and root in ("add", "sub"):
        return f"add_directed({a},{'-' if root == 'sub' else ''}{b},{mode!r})"
    if mode and root == "mul":
        return f"mul_directed({a},{b},{mode!r})"
    if mode:
        raise emitter.unsupported(f"rounding {mode} of {root}")
    return f"({a}{_OPERATOR[root]}{b})"


def _extremum(instruction: Instruction, operands: list[str]) -> str:
    """min and max: a NaN operand is dropped unless .NaN asks to keep it."""
    root, parts = instruction.root, instruction.parts
    function = f"np.{root}imum" if "NaN" in parts else f"f{root}"
    if "abs" in parts or "xorsign" in parts:
        raise NotImplementedError
    value = operands[0]
    for operand in operands[1:]:
        value = f"{function}({value},{operand})"
    return value


def _packed(emitter: Emitter, instruction: Instruction) -> None:
    """f32x2: both halves on their own, since a pair is two register slots."""
    pairs = [emitter.read_pair(operand) for operand in instruction.operands[1:]]
    low = _compute(emitter, instruction, [pair[0] for pair in pairs])
    high = _compute(emitter, instruction, [pair[1] for pair in pairs])
    emitter.write_pair(instruction.operands[0], low, high)


def _packed_narrow(emitter: Emitter, instruction: Instruction) -> None:
    kind = instruction.parts[-1]
    words = [emitter.temporary(emitter.read(o, "u")) for o in instruction.operands[1:]]
    function = "from_bf16" if kind == "bf16x2" else "from_f16"
    low = [f"{function}({word}.astype(U2))" for word in words]
    high = [f"{function}(({word}>>U4(16)).astype(U2))" for word in words]
    bits = "bf16_bits" if kind == "bf16x2" else "f16_bits"
    low_value = f"{bits}({_compute(emitter, instruction, low)})"
    high_value = f"{bits}({_compute(emitter, instruction, high)})"
    emitter.write(instruction.operands[0], f"({low_value}|({high_value}<<U4(16)))", "u")


def _mixed(emitter: Emitter, instruction: Instruction) -> None:
    """Mixed precision: the last operand and the result are float32, the others 16-bit floats."""
    kind = instruction.parts[-1]
    *multiplied, last = instruction.operands[1:]
    if instruction.root in ("add", "sub"):
        multiplied = [instruction.operands[1]]
    operands = [narrow(emitter, o, kind) for o in multiplied] + [emitter.read(last, "f")]
    emitter.write(instruction.operands[0], _compute(emitter, instruction, operands), "f")


def _double(emitter: Emitter, instruction: Instruction, operands: list[str]) -> str:
    root = instruction.root
    if any(p in ("rm", "rp", "rz") for p in instruction.parts):
        raise emitter.unsupported("directed rounding of f64")
    if root in ("fma", "mad"):
        a, b, c = operands
        return f"({a}*{b}+{c})"
    if root in ("min", "max"):
        return _extremum(instruction, operands)
    if root in ("neg", "abs"):
        return f"({'-' if root == 'neg' else 'abs'}({operands[0]}))"
    return f"({operands[0]}{_OPERATOR[root]}{operands[1]})"


@handles(*_UNARY)
def _unary(emitter: Emitter, instruction: Instruction) -> None:
    kind, flush = instruction.parts[-1], "ftz" in instruction.parts
    target, source = instruction.operands
    if kind in ("f16", "bf16"):
        value = _UNARY[instruction.root].format(narrow(emitter, source, kind))
        return emitter.write(target, round_narrow(value, kind), "h")
    if kind in ("f16x2", "bf16x2"):
        return _unary_pair(emitter, instruction)
    if kind == "f64":
        value = _UNARY[instruction.root].replace("K_ONE", "1.0").format(emitter.read(source, "d"))
        return emitter.write(target, value, "d")
    x = emitter.read(source, "f")
    if flush and instruction.root == "ex2":
        # 2^x is subnormal exactly below -126; a NaN stays a NaN through 0 * NaN.
        threshold = emitter.constant(0xC2FC0000, "f")
        value = f"(exp2({x})*({x}>={threshold}))"
    elif flush:
        value = f"ftz({_UNARY[instruction.root].format(f'ftz({x})')})"
    else:
        value = _UNARY[instruction.root].format(x)
    return emitter.write(target, value, "f")


def _unary_pair(emitter: Emitter, instruction: Instruction) -> None:
    target, source = instruction.operands
    kind = instruction.parts[-1]
    word = emitter.temporary(emitter.read(source, "u"))
    function = "from_bf16" if kind == "bf16x2" else "from_f16"
    bits = "bf16_bits" if kind == "bf16x2" else "f16_bits"
    formula = _UNARY[instruction.root]
    low = bits + "(" + formula.format(f"{function}({word}.astype(U2))") + ")"
    high = bits + "(" + formula.format(f"{function}(({word}>>U4(16)).astype(U2))") + ")"
    emitter.write(target, f"({low}|({high}<<U4(16)))", "u")
