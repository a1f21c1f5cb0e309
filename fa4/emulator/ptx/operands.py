"""Operand text to operand objects."""

import re
import struct
from collections.abc import Callable

from ..errors import PtxSyntaxError
from .syntax import Address, Immediate, Operand, Pair, Register, Sink, Special, Symbol, Vector

_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT32 = re.compile(r"-?0[fF][0-9a-fA-F]{8}$")
_FLOAT64 = re.compile(r"-?0[dD][0-9a-fA-F]{16}$")
_DECIMAL = re.compile(r"-?\d+\.\d*([eE][+-]?\d+)?$")
_OFFSET = re.compile(r"(.+?)\s*\+\s*(-?\w+)$")


def split_operands(text: str) -> list[str]:
    """Splits at the commas outside brackets and braces."""
    if not any(c in text for c in "[{("):
        return [part.strip() for part in text.split(",")] if text else []
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        if char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return parts


Resolve = Callable[[str], str | tuple[str, ...] | None]


def parse_operand(text: str, resolve: Resolve) -> Operand:
    """Parses one operand.

    `resolve` gives a register's unique name (those of its parts for a vector register), or None
    for other names.
    """
    name = resolve(text)
    if isinstance(name, tuple):
        return Vector(tuple(Register(part) for part in name))
    if name is not None:
        return Register(name)
    first = text[0]
    if first == "[":
        return _address(text[1:-1].strip(), resolve)
    if first == "{":
        return Vector(tuple(parse_operand(t, resolve) for t in split_operands(text[1:-1].strip())))
    if first == "!":
        inner = parse_operand(text[1:].strip(), resolve)
        if isinstance(inner, Register):
            return Register(inner.name, True)
    if "|" in text:
        return _pair(text, resolve)
    if first == "%":
        return Special(text)
    if text == "_":
        return Sink()
    immediate = parse_immediate(text)
    if immediate is not None:
        return immediate
    if re.match(r"[A-Za-z_$][\w$.]*$", text):
        return Symbol(text)
    raise PtxSyntaxError(f"operand {text!r} is not understood")


def parse_immediate(text: str) -> Immediate | None:
    """Parses a constant, or returns None."""
    if _INTEGER.match(text):
        return Immediate(int(text.rstrip("U"), 0) if not _octal(text) else int(text, 8))
    negative = text.startswith("-")
    if _FLOAT32.match(text):
        return Immediate(int(text.lstrip("-")[2:], 16) ^ (negative << 31), "f32")
    if _FLOAT64.match(text):
        return Immediate(int(text.lstrip("-")[2:], 16) ^ (negative << 63), "f64")
    if _DECIMAL.match(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    return None


def _octal(text: str) -> bool:
    return re.match(r"-?0[0-7]+$", text) is not None


def _address(text: str, resolve: Resolve) -> Address:
    coordinates = None
    parts = split_operands(text)
    if len(parts) > 1:
        coordinates = parse_operand(parts[1], resolve)
    base, offset = parts[0], 0
    match = _OFFSET.match(base)
    if match:
        base, offset = match.group(1), int(match.group(2), 0)
    return Address(parse_operand(base, resolve), offset, coordinates)


def _pair(text: str, resolve: Resolve) -> Pair:
    halves = []
    for part in text.split("|"):
        name = resolve(part.strip())
        if name is None and part.strip() != "_":
            raise PtxSyntaxError(f"destination {text!r} is not understood")
        halves.append(None if name is None else Register(name))
    return Pair(*halves)
