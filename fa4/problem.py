"""What the caller asked, in plain Python: shapes, dtype, mask, scale. Bad input ends here.

A `Problem` is normalised: two ways of asking for the same mask give equal problems.
No torch and no compiler is imported, so every rule can be tested alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

DTYPES = ("bfloat16", "float16")
HEAD_DIM_MULTIPLE = 8  # 16 bytes of a 2-byte type: the unit of TMA strides and swizzles
MAX_HEAD_DIM = 256  # of any kernel; the plan of an architecture may refuse smaller ones
MAX_LENGTH = 2**30  # kernels add two lengths (row + seqlen_k, row + left) in signed 32-bit words
# Kernels multiply by these in float32, and by them times 2 log2 e: all finite, none subnormal.
FACTORS = (2.0**-126, 2.0**126)
MAX_QUERY_ROWS = 2**30  # batch * heads * rows: bounds a work tile's number, to which the grid adds


@dataclass(frozen=True)
class Problem:
    """One attention problem, validated and normalised.

    Shapes: q (batch, seqlen_q, heads_q, head_dim), k (batch, seqlen_k, heads_kv, head_dim),
    v (batch, seqlen_k, heads_kv, head_dim_v). Query i may see key j if
    `-window_left <= j - (i + seqlen_k - seqlen_q) <= window_right`; `None` or a negative
    bound on input means unbounded and is stored as `None`. `causal` on input sets
    window_right to 0 and is stored as "window_right == 0". Scores are `scale * q.k`, then
    `softcap * tanh(score / softcap)` unless softcap is 0.0. `deterministic`: the gradients have the
    same bits in every run (those of O and LSE always do).

    Raises TypeError for a wrong type and ValueError for a value that no kernel accepts.
    """

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    dtype: str
    causal: bool
    window_left: int | None
    window_right: int | None
    softcap: float
    scale: float
    deterministic: bool = False

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_heads()
        check_head_dims(self.head_dim, self.head_dim_v)
        if self.dtype not in DTYPES:
            raise TypeError(f"dtype is {self.dtype!r}; supported: {', '.join(DTYPES)}.")
        if not isinstance(self.deterministic, bool):
            raise TypeError(f"deterministic is {self.deterministic!r}; it must be True or False.")
        self._normalise_mask()
        self._normalise_numbers()

    @property
    def empty(self) -> bool:
        """True when no (query, key) pair exists: the result needs no kernel."""
        return 0 in (self.batch, self.seqlen_q, self.seqlen_k)

    @property
    def mask(self) -> str:
        """Kind of mask: "full", "causal" (bottom-right aligned) or "window"."""
        if self.window_left is None and self.window_right is None:
            return "full"
        return "causal" if self.window_left is None and self.causal else "window"

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head (1 is MHA)."""
        return self.heads_q // self.heads_kv

    @property
    def diagonal_shift(self) -> int:
        """Key index aligned with query 0: masks are aligned at the bottom right."""
        return self.seqlen_k - self.seqlen_q

    @property
    def factors(self) -> dict[str, float]:
        """What kernels multiply scores by, see `fa4.numerics.scales.Scales`.

        With softcap their scores are tanh(scale q.k / cap), still to be multiplied by the cap.
        """
        cap = self.softcap or 1.0
        scale = cap if self.softcap else self.scale
        return {
            "softmax_scale": scale,
            "scale_log2": scale * math.log2(math.e),
            "softcap": self.scale / cap,
        }

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_sizes(self) -> None:
        for name in ("batch", "seqlen_q", "seqlen_k"):
            value = _integer(name, getattr(self, name))
            if not 0 <= value <= MAX_LENGTH:
                raise ValueError(f"{name} is {value}; it must lie in 0 ... {MAX_LENGTH}.")
        rows = self.batch * self.seqlen_q * _integer("heads_q", self.heads_q)
        if rows > MAX_QUERY_ROWS:
            raise ValueError(
                f"batch * seqlen_q * heads_q is {rows}; at most {MAX_QUERY_ROWS} query rows fit "
                "one call. Split the batch."
            )

    def _check_heads(self) -> None:
        heads_q, heads_kv = self.heads_q, _integer("heads_kv", self.heads_kv)
        if heads_q < 1 or heads_kv < 1:
            raise ValueError(f"{heads_q=} and {heads_kv=}; both must be at least 1.")
        if heads_q % heads_kv:
            raise ValueError(
                f"{heads_q=} is no multiple of {heads_kv=}; grouped-query attention gives every "
                "key/value head the same number of query heads. Repeat or drop heads."
            )

    def _normalise_mask(self) -> None:
        if not isinstance(self.causal, bool):
            raise TypeError(f"causal is {self.causal!r}; it must be True or False.")
        left = _window_bound("window_left", self.window_left)
        right = 0 if self.causal else _window_bound("window_right", self.window_right)
        # No row reaches further than the far key, so larger bounds mean the same mask and
        # would only overflow 32-bit index arithmetic.
        self._set("window_left", left if left is None else min(left, max(self.seqlen_k - 1, 0)))
        # A positive right bound stays positive: 0 is what makes a mask causal.
        self._set("window_right", right if right is None else min(right, max(self.seqlen_q - 1, 1)))
        self._set("causal", right == 0)

    def _normalise_numbers(self) -> None:
        softcap = _finite("softcap", self.softcap)
        if softcap < 0.0:
            raise ValueError(f"softcap is {softcap}; it must be positive, or 0.0 for off.")
        scale = _finite("scale", self.scale)
        if scale <= 0.0:
            raise ValueError(
                f"scale is {scale}; it must be positive (the default is 1/sqrt(head_dim)). "
                "For a negative scale negate q."
            )
        _check_factor("scale", scale, f"scale is {scale}", "Multiply q by a part of it.")
        if softcap:
            remedy = "Take another softcap; 0.0 is off."
            _check_factor("softcap", softcap, f"softcap is {softcap}", remedy)
            values = f"scale is {scale} and softcap is {softcap}"
            _check_factor("scale / softcap", scale / softcap, values, remedy)
        self._set("softcap", softcap)
        self._set("scale", scale)


def example_problem(head_dim: int, head_dim_v: int | None = None, **changes: Any) -> Problem:
    """One query and one key, unmasked bfloat16, but for `changes`: names a kind of kernel.

    A plan depends on head dims, dtype and options only, so any problem of the kind gives it.
    """
    fields = dict.fromkeys(("batch", "seqlen_q", "seqlen_k", "heads_q", "heads_kv"), 1)
    fields |= {"dtype": "bfloat16", "causal": False, "window_left": None, "window_right": None}
    fields |= {"softcap": 0.0, "scale": 1.0, "head_dim": head_dim}
    fields["head_dim_v"] = head_dim if head_dim_v is None else head_dim_v
    return Problem(**{**fields, **changes})


def check_head_dims(head_dim: int, head_dim_v: int) -> None:
    """Raise ValueError for head dims that no architecture has a kernel for."""
    for name, value in (("head_dim", head_dim), ("head_dim_v", head_dim_v)):
        if _integer(name, value) < HEAD_DIM_MULTIPLE or value % HEAD_DIM_MULTIPLE:
            raise ValueError(
                f"{name} is {value}; it must be a positive multiple of {HEAD_DIM_MULTIPLE} "
                "(16 bytes). Pad q and k (or v) with zeros."
            )
    if max(head_dim, head_dim_v) > MAX_HEAD_DIM:
        raise ValueError(
            f"(head_dim, head_dim_v) is {(head_dim, head_dim_v)}; supported: both at most "
            f"{MAX_HEAD_DIM}."
        )


def default_scale(head_dim: int) -> float:
    """1/sqrt(head_dim), the softmax scale of "Attention Is All You Need", section 3.2.1."""
    return 1.0 / math.sqrt(head_dim)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be an int.")
    return int(value)


def _window_bound(name: str, value: Any) -> int | None:
    if value is None:
        return None
    return None if _integer(name, value) < 0 else int(value)


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be a number.")
    try:
        number = float(value)
    except OverflowError:  # an int may be larger than any float
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}; it must be finite.")
    return number


def _check_factor(name: str, factor: float, values: str, remedy: str) -> None:
    """Raise ValueError for a factor outside of FACTORS; the message gives `values` and `remedy`."""
    low, high = FACTORS
    if not low <= factor <= high:
        raise ValueError(
            f"{values}; {name} must lie in {low:.3g} ... {high:.3g}, so that kernels can multiply "
            f"by it in float32. {remedy}"
        )
