"""mov, cvta and cvt."""

from __future__ import annotations

from ..ptx.syntax import Immediate, Instruction, Register, Sink, Vector
from .emitter import KIND, Emitter
from .floating import narrow, round_narrow
from .handlers import handles

_BITS = {"h": 16, "u": 32, "l": 64}
_PART = {("u", 2): "h", ("l", 2): "u", ("l", 4): "h", ("q", 2): "l", ("q", 4): "u"}
_DTYPE = {"b": "U1", "h": "U2", "u": "U4", "l": "U8"}
_ROUNDED = ("rni", "rzi", "rmi", "rpi")


@handles("mov")
def _mov(emitter: Emitter, instruction: Instruction) -> None:
    target, source = instruction.operands
    kind = KIND[instruction.parts[-1]]
    if isinstance(target, Vector):
        return _unpack(emitter, target, source, kind)
    if isinstance(source, Vector):
        return _pack(emitter, target, source, kind)
    if isinstance(target, Sink):
        return None
    storage = emitter.registers.storage[target.name]
    if storage in "xq":
        return _mov_pair(emitter, target, source, storage)
    if isinstance(source, Register) and not source.negated:
        other = emitter.registers.storage[source.name]
        kind = kind if other in "xq" else other
    elif isinstance(source, Immediate) and kind != "p":
        kind = storage
    return emitter.write(target, emitter.read(source, kind), kind)


def _mov_pair(emitter: Emitter, target: Register, source, storage: str) -> None:
    if storage == "q" and not isinstance(source, Register):
        raise emitter.unsupported("128-bit constant")
    if storage == "q":
        slot = emitter.registers.slot[source.name]
        return emitter.write_pair(target, emitter.local(slot), emitter.local(slot + 1))
    low, high = emitter.read_pair(source)
    return emitter.write_pair(target, low, high)


def _pack(emitter: Emitter, target: Register, source: Vector, kind: str) -> None:
    """{low, ..., high} into one register."""
    storage = emitter.registers.storage[target.name]
    part = _PART[kind, len(source.items)]
    if kind == "q" or (storage == "x" and part == "u"):
        inner = "l" if kind == "q" else "f"
        if kind == "q" and part == "u":
            words = [emitter.read(item, "u") for item in source.items]
            return emitter.write_pair(
                target, f"join({words[0]},{words[1]})", f"join({words[2]},{words[3]})"
            )
        low, high = (emitter.read(item, inner) for item in source.items)
        return emitter.write_pair(target, low, high)
    value, dtype = "", _DTYPE[kind]
    for position, item in enumerate(source.items):
        piece = f"{emitter.read(item, part)}.astype({dtype})"
        shift = _BITS[part] * position
        value += f"|({piece}<<{dtype}({shift}))" if position else piece
    return emitter.write(target, f"({value})", kind)


def _unpack(emitter: Emitter, target: Vector, source, kind: str) -> None:
    """One register into {low, ..., high}."""
    part = _PART[kind, len(target.items)]
    if kind == "q":
        slot = emitter.registers.slot[source.name]
        halves = [emitter.local(slot), emitter.local(slot + 1)]
        if part == "u":
            halves = [
                h for half in halves for h in (f"{half}.astype(U4)", f"({half}>>U8(32)).astype(U4)")
            ]
        for item, half in zip(target.items, [emitter.temporary(h) for h in halves], strict=True):
            emitter.write(item, half, part)
        return
    if part == "u" and kind == "l":
        pieces, piece_kind = emitter.read_pair(source), "f"
        if isinstance(source, Register) and emitter.registers.storage[source.name] != "x":
            value = emitter.temporary(emitter.read(source, "l"))
            pieces, piece_kind = (f"{value}.astype(U4)", f"({value}>>U8(32)).astype(U4)"), "u"
    else:
        value = emitter.temporary(emitter.read(source, kind))
        bits, dtype = _BITS[part], _DTYPE[kind]
        pieces = [
            f"({value}>>{dtype}({bits * i})).astype({_DTYPE[part]})"
            for i in range(len(target.items))
        ]
        piece_kind = part
    for item, piece in zip(target.items, pieces, strict=True):
        if not isinstance(item, Sink):
            emitter.write(item, piece, piece_kind)


@handles("cvta")
def _cvta(emitter: Emitter, instruction: Instruction) -> None:
    """Generic addresses: shared and local memory have windows above all host addresses."""
    target, source = instruction.operands
    space = next(p for p in instruction.parts if p.split("::")[0] in _SPACES).split("::")[0]
    window = {"shared": "SHARED_WINDOW", "local": "LOCAL_WINDOW"}.get(space)
    value = emitter.read(source, "l")
    if window:
        value = f"({value}{'-' if 'to' in instruction.parts else '+'}{window})"
    emitter.write(target, value, "l")


_SPACES = ("global", "shared", "local", "const", "param")


@handles("cvt")
def _cvt(emitter: Emitter, instruction: Instruction) -> None:
    parts, operands = instruction.parts, instruction.operands
    to, origin = parts[-2:]
    if "pack" in parts or "rs" in parts or "scaled::n2::ue8m0" in parts:
        raise emitter.unsupported("form of cvt")
    if to in ("bf16x2", "f16x2", "e4m3x2", "e5m2x2") or origin in ("e4m3x2", "e5m2x2"):
        return _cvt_pair(emitter, instruction)
    if to == "tf32":
        return emitter.write(operands[0], f"to_tf32({emitter.read(operands[1], 'f')})", "f")
    floating = ("f16", "bf16", "f32", "f64")
    if origin in floating and to in floating:
        return _float_to_float(emitter, instruction)
    if origin in floating:
        return _float_to_integer(emitter, instruction)
    if to in floating:
        return _integer_to_float(emitter, instruction)
    return _integer_to_integer(emitter, instruction)


def _float_value(emitter: Emitter, operand, origin: str) -> str:
    if origin in ("f16", "bf16"):
        return narrow(emitter, operand, origin)
    return emitter.read(operand, KIND[origin])


def _float_to_float(emitter: Emitter, instruction: Instruction) -> None:
    parts, (target, source) = instruction.parts, instruction.operands
    to, origin = parts[-2:]
    value = _float_value(emitter, source, origin)
    if "ftz" in parts:
        value = f"ftz({value})"
    step = next((p for p in parts if p in _ROUNDED), None)
    if step:
        function = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}[step]
        value = f"np.{function}({value})"
    if "sat" in parts:
        value = f"saturate({value})"
    if "relu" in parts:
        value = f"np.maximum({value},F4(0))"
    if to in ("f16", "bf16"):
        if "satfinite" in parts:
            value = f"saturate_{to}({value})"
        if "rz" in parts:
            return emitter.write(target, f"truncate_to_{to}({value}).astype(U2)", "h")
        return emitter.write(target, round_narrow(value, to), "h")
    if to == origin or (origin in ("f16", "bf16") and to == "f32"):
        return emitter.write(target, value, KIND[to])
    if to == "f64":
        return emitter.write(target, f"{value}.astype(F8)", "d")
    mode = next((p for p in parts if p in ("rm", "rp", "rz")), None)
    rounded = f"round_exact({value},None,{mode!r})" if mode else f"{value}.astype(F4)"
    return emitter.write(target, rounded, "f")


def _float_to_integer(emitter: Emitter, instruction: Instruction) -> None:
    parts, (target, source) = instruction.parts, instruction.operands
    to, origin = parts[-2:]
    step = next((p for p in parts if p in _ROUNDED), None)
    if step is None:
        raise emitter.unsupported("conversion to integer without a rounding mode")
    bits, signed = int(to[1:]), to[0] == "s"
    low = -(1 << bits - 1) if signed else 0
    high = (1 << bits - 1) - 1 if signed else (1 << bits) - 1
    dtype = f"{'I' if signed else 'U'}{bits // 8}"
    value = _float_value(emitter, source, origin)
    emitter.write(target, f"to_integer({value},{step!r},{low},{high},{dtype})", KIND[to])


def _integer_to_float(emitter: Emitter, instruction: Instruction) -> None:
    parts, (target, source) = instruction.parts, instruction.operands
    to, origin = parts[-2:]
    value = emitter.read(source, KIND[origin])
    mode = next((p for p in parts if p in ("rm", "rp", "rz")), None)
    if mode and to == "f32" and origin[1:] != "64":
        return emitter.write(target, f"round_exact({value}.astype(F8),None,{mode!r})", "f")
    if mode:
        raise emitter.unsupported(f"rounding {mode}")
    if to in ("f16", "bf16"):
        return emitter.write(target, round_narrow(f"{value}.astype(F4)", to), "h")
    dtype = "F4" if to == "f32" else "F8"
    return emitter.write(target, f"{value}.astype({dtype})", KIND[to])


def _integer_to_integer(emitter: Emitter, instruction: Instruction) -> None:
    parts, (target, source) = instruction.parts, instruction.operands
    to, origin = parts[-2:]
    value = emitter.read(source, KIND[origin])
    dtype = f"{'I' if to[0] == 's' else 'U'}{int(to[1:]) // 8}"
    value = f"clamp_integer({value},{dtype})" if "sat" in parts else f"{value}.astype({dtype})"
    emitter.write(target, value, KIND[to])


def _cvt_pair(emitter: Emitter, instruction: Instruction) -> None:
    """Two floats into one packed word (first operand in the upper half), or fp8 to f16."""
    parts, (target, *sources) = instruction.parts, instruction.operands
    to, origin = parts[-2:]
    if origin in ("e4m3x2", "e5m2x2"):
        table = "E4M3" if origin == "e4m3x2" else "E5M2"
        value = f"fp8_to_f16_pair({emitter.read(sources[0], 'h')},{table})"
        return emitter.write(target, f"relu_f16_pair({value})" if "relu" in parts else value, "u")
    if origin != "f32":
        raise emitter.unsupported(f"conversion from {origin}")
    high, low = (emitter.read(o, "f") for o in sources)
    if "relu" in parts:
        high, low = f"np.maximum({high},F4(0))", f"np.maximum({low},F4(0))"
    if "satfinite" in parts and to in ("f16x2", "bf16x2"):
        high, low = f"saturate_{to[:-2]}({high})", f"saturate_{to[:-2]}({low})"
    if to in ("e4m3x2", "e5m2x2"):
        table = "E4M3" if to == "e4m3x2" else "E5M2"
        return emitter.write(target, f"fp8_pair({high},{low},{table})", "h")
    if "rz" in parts:
        function = f"truncate_to_{to[:-2]}"
        return emitter.write(target, f"(({function}({high})<<U4(16))|{function}({low}))", "u")
    if to == "bf16x2":
        half = emitter.constant(0x7FFF, "u")
        return emitter.write(target, f"bf16_pair({high},{low},{half})", "u")
    return emitter.write(target, f"f16_pair({high},{low})", "u")
