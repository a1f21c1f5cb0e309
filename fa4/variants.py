"""Every kind of kernel that there is: what a plan, and so a compiled kernel, depends on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from fa4 import plan_hopper
from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.plan_base import BasePlan
from fa4.plan_blackwell import PADDED_HEAD_DIMS, SQUARE_HEAD_DIM, WIDE_HEAD_DIMS
from fa4.problem import DTYPES, Problem, default_scale, example_problem

SQUARE_AND_BELOW = tuple(dim for dim in PADDED_HEAD_DIMS if dim <= SQUARE_HEAD_DIM)
_BLACKWELL = (*itertools.product(SQUARE_AND_BELOW, repeat=2), WIDE_HEAD_DIMS)
HEAD_DIMS = {  # padded; Hopper computes pairs without a tuning as the next square one
    "sm_100a": _BLACKWELL,
    "sm_103a": _BLACKWELL,
    "sm_90a": tuple(dict.fromkeys(line.dims for line in plan_hopper.TUNED)),
}
MASKS = {"full": (None, None), "causal": (None, 0), "left": (64, None), "window": (64, 32)}
SOFTCAP = 15.0


@dataclass(frozen=True)
class Variant:
    """One kernel, with what comes before and after it in the backward pass.

    `keys` is a number of keys for which an architecture plans this kernel.
    """

    arch: str
    dims: tuple[int, int]  # of Q and K, of V
    mask: str  # of MASKS
    dtype: str
    softcap: bool
    keys: int = 1
    backward: bool = False
    deterministic: bool = False

    def __str__(self) -> str:
        keys = f" {self.keys} keys" if self.keys > 1 else ""
        return f"{self.arch} {self.plan.name}{keys}"

    def problem(self, **sizes: Any) -> Problem:
        """A problem for this kernel with these sizes; 1 for those that are not given."""
        left, right = MASKS[self.mask]
        return example_problem(
            *self.dims,
            dtype=self.dtype,
            window_left=left,
            window_right=right,
            softcap=SOFTCAP if self.softcap else 0.0,
            deterministic=self.deterministic,
            **{"scale": default_scale(self.dims[0]), "seqlen_k": self.keys, **sizes},
        )

    @property
    def direction(self) -> str:
        """Which pass."""
        return "backward" if self.backward else "forward"

    @property
    def plan(self) -> BasePlan:
        """The kernel's plan."""
        return (plan_backward if self.backward else plan_forward)(self.problem(), self.arch)


def variants(arch: str, backward: bool = False) -> tuple[Variant, ...]:
    """All of an architecture and a pass, one per compiled plan."""
    lengths = (1,)
    if arch == "sm_90a" and not backward:
        bounds = {line.most_keys for line in plan_hopper.TUNED} - {None}
        lengths = (1, *(bound + 1 for bound in sorted(bounds)))
    orders = (False, True) if backward else (False,)  # the forward is deterministic always
    axes = (HEAD_DIMS[arch], MASKS, DTYPES, (False, True), lengths, (backward,), orders)
    found: dict[BasePlan, Variant] = {}
    for axis in itertools.product(*axes):
        variant = Variant(arch, *axis)
        found.setdefault(variant.plan, variant)
    return tuple(found.values())
