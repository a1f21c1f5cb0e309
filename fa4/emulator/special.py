"""Special registers and the addresses of variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import UnsupportedInstruction

if TYPE_CHECKING:
    from .cta import Cta
    from .team import Team

U4, U8 = np.uint32, np.uint64
SHARED_WINDOW = U8(1 << 60)  # generic addresses of shared memory start here
LOCAL_WINDOW = U8(1 << 61)
_AXES = {"x": 0, "y": 1, "z": 2}


def symbol_address(cta: Cta, name: str) -> int:
    """Address of a parameter (host), a shared variable (rank in bits 24 and up) or another."""
    translation = cta.translation
    if name in translation.param_offsets:
        return cta.params.ctypes.data + translation.param_offsets[name]
    variable = translation.kernel.variables.get(name)
    if variable is None:
        raise UnsupportedInstruction(f"the address of {name!r} is unknown")
    if variable.space == "dynamic":
        return cta.shared.dynamic_start | cta.rank << 24
    if variable.space == "shared":
        return cta.shared.static_start + variable.offset | cta.rank << 24
    if variable.space == "local":
        return variable.offset
    return translation.variable_address(name)


def special_value(team: Team, name: str) -> np.ndarray:
    """A special register for every lane of a team. Raises UnsupportedInstruction."""
    cta = team.cta
    register, _, axis = name[1:].partition(".")
    if axis:
        return _vector_register(team, register, _AXES[axis])
    lane = team.threads % 32
    if register == "laneid":
        return lane.astype(U4)
    if register == "warpid":
        return (team.threads // 32).astype(U4)
    if register.startswith("lanemask_"):
        return _lane_mask(lane, register[9:])
    if register in ("clock", "globaltimer", "clock64"):
        dtype = U4 if register == "clock" else U8
        return np.full(team.n, cta.cluster.clock(), dtype)
    scalar = {
        "nwarpid": len(cta.warps),
        "smid": cta.index % cta.launch.sm_count,
        "nsmid": cta.launch.sm_count,
        "gridid": 0,
        "cluster_ctarank": cta.rank,
        "cluster_nctarank": cta.launch.cluster_size,
        "is_explicit_cluster": cta.launch.cluster_size > 1,
        "dynamic_smem_size": cta.launch.smem_bytes,
        "total_smem_size": cta.shared.end - cta.shared.static_start,
    }.get(register)
    if scalar is None:
        raise UnsupportedInstruction(f"special register {name}")
    return np.full(team.n, scalar, bool if register.startswith("is_") else U4)


def _vector_register(team: Team, register: str, axis: int) -> np.ndarray:
    cta, launch = team.cta, team.cta.launch
    if register == "tid":
        x, y, _ = launch.block
        thread = team.threads
        return (thread % x, thread // x % y, thread // (x * y))[axis].astype(U4)
    cluster = launch.cluster[axis]
    scalar = {
        "ntid": launch.block[axis],
        "ctaid": cta.position[axis],
        "nctaid": launch.grid[axis],
        "cluster_ctaid": cta.position[axis] % cluster,
        "cluster_nctaid": cluster,
        "clusterid": cta.position[axis] // cluster,
        "nclusterid": launch.grid[axis] // cluster,
    }.get(register)
    if scalar is None:
        raise UnsupportedInstruction(f"special register %{register}")
    return np.full(team.n, scalar, U4)


def _lane_mask(lane: np.ndarray, relation: str) -> np.ndarray:
    one = np.uint64(1)
    bit = one << lane.astype(U8)
    value = {
        "eq": bit,
        "lt": bit - one,
        "le": (bit << one) - one,
        "gt": ~((bit << one) - one),
        "ge": ~(bit - one),
    }[relation]
    return value.astype(U4)
