"""The shared-memory map: where every mbarrier and tile lies. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.pipeline.edges import Edge

MBARRIER_BYTES = 8
TILE_ALIGN = 1024  # a 128-byte swizzle atom is 8 rows of 128 bytes: TMA and UMMA need its alignment


@dataclass(frozen=True)
class SharedMemoryMap:
    """Byte offsets from the start of dynamic shared memory.

    full and empty: first mbarrier of an edge's stages, by edge name.
    tiles: first byte of each buffer, by its CuTe name.
    nbytes: size of the whole.
    """

    full: dict[str, int]
    empty: dict[str, int]
    tiles: dict[str, int]
    nbytes: int


def shared_memory_map(edges: tuple[Edge, ...], buffers: dict[str, int]) -> SharedMemoryMap:
    """Barriers first, then the buffers (name -> bytes): small ones packed, tiles 1024-aligned."""
    full, empty, tiles, at = {}, {}, {}, 0
    for edge in edges:
        full[edge.name] = at
        at += MBARRIER_BYTES * edge.stages
        if edge.has_release:
            empty[edge.name] = at
            at += MBARRIER_BYTES * edge.stages
    for name, nbytes in buffers.items():
        align = TILE_ALIGN if nbytes >= TILE_ALIGN * 4 else 16
        at = -(-at // align) * align
        tiles[name] = at
        at += nbytes
    return SharedMemoryMap(full, empty, tiles, at)
