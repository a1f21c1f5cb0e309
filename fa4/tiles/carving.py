"""Tensors at the places of a plan's map of shared memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32

from fa4.plan_base import BasePlan
from fa4.tiles.layouts import DTYPES


@dataclass(frozen=True)
class Carver:
    """Names are those of `plan.smem()`; `base` is where its shared memory starts."""

    plan: BasePlan
    base: cute.Pointer

    def tile(self, name: str, layout: cute.ComposedLayout, offset: int = 0) -> cute.Tensor:
        """A swizzled tensor of the plan's dtype, `offset` bytes into the buffer."""
        dtype = DTYPES[self.plan.dtype]
        pointer = cute.recast_ptr(self._place(name) + offset, layout.inner, dtype=dtype)
        return cute.make_tensor(pointer, layout.outer)

    def floats(self, name: str, shape: tuple[int, ...]) -> cute.Tensor:
        """A tensor of float32, the first mode contiguous."""
        pointer = cute.recast_ptr(self._place(name), dtype=Float32)
        return cute.make_tensor(pointer, cute.make_layout(shape))

    def _place(self, name: str) -> cute.Pointer:
        return self.base + self.plan.smem().tiles[name]
