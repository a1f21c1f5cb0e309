"""What generated code can name."""

from __future__ import annotations

import numpy as np

from .. import (
    barriers,
    bulk_copy,
    formats,
    memory_ops,
    mma,
    numeric,
    tensor_memory,
    tma,
    warp_matrix,
    warp_ops,
    warpgroup,
    wgmma,
)
from ..errors import KernelTrap
from ..special import LOCAL_WINDOW, SHARED_WINDOW

U1, U2, U4, U8 = np.uint8, np.uint16, np.uint32, np.uint64


def _join(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two 32-bit halves to one uint64."""
    return low.view(U4).astype(U8) | (high.view(U4).astype(U8) << U8(32))


def _split(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One uint64 to its halves as float32 bit patterns."""
    return value.astype(U4).view(np.float32), (value >> U8(32)).astype(U4).view(np.float32)


def _saturate(x: np.ndarray) -> np.ndarray:
    """.sat: clamps to [0, 1], NaN to 0."""
    return np.where(x != x, x.dtype.type(0), np.clip(x, x.dtype.type(0), x.dtype.type(1)))


def _clamp_integer(x: np.ndarray, dtype: type) -> np.ndarray:
    """cvt.sat between integers."""
    limits = np.iinfo(dtype)
    low = max(int(limits.min), int(np.iinfo(x.dtype).min))
    high = min(int(limits.max), int(np.iinfo(x.dtype).max))
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(dtype)


NAMESPACE: dict[str, object] = {}
for _module in (
    numeric,
    formats,
    barriers,
    bulk_copy,
    memory_ops,
    mma,
    tensor_memory,
    tma,
    warp_matrix,
    warp_ops,
    warpgroup,
    wgmma,
):
    NAMESPACE.update({k: v for k, v in vars(_module).items() if not k.startswith("_")})
NAMESPACE.update(
    np=np,
    where=np.where,
    count=np.count_nonzero,
    fmin=np.fmin,
    fmax=np.fmax,
    exp2=np.exp2,
    log2=np.log2,
    sqrt=np.sqrt,
    tanh=np.tanh,
    sin=np.sin,
    cos=np.cos,
    K_ONE=np.float32(1),
    join=_join,
    split=_split,
    saturate=_saturate,
    clamp_integer=_clamp_integer,
    KernelTrap=KernelTrap,
    SHARED_WINDOW=SHARED_WINDOW,
    LOCAL_WINDOW=LOCAL_WINDOW,
    U1=U1,
    U2=U2,
    U4=U4,
    U8=U8,
    I1=np.int8,
    I2=np.int16,
    I4=np.int32,
    I8=np.int64,
    F2=np.float16,
    F4=np.float32,
    F8=np.float64,
)
