"""The shortest and the longest way through a loop body, in instructions."""

from __future__ import annotations

from dataclasses import dataclass

from fa4.profile.flow import Flow, Loop, components


@dataclass(frozen=True)
class Body:
    """Instructions of one iteration, without nested loops.

    blocks: of the body. static: their instructions, mbarrier retries left out.
    shortest, longest: instructions executed on the extreme paths from the header back to it; all
    waits succeed at once. Branches of these kernels are uniform per warp.
    """

    blocks: frozenset[int]
    static: int
    shortest: int
    longest: int


def body(flow: Flow, loop: Loop, loops: list[Loop]) -> Body:
    """Body of `loop`; `loops` are all loops of its function."""
    inner = [other for other in loops if other.blocks < loop.blocks]
    nested = frozenset().union(*(other.blocks for other in inner))
    own = loop.blocks - nested
    retries = [other for other in inner if flow.is_retry(other)]
    slow = frozenset().union(*(other.blocks for other in retries))
    return Body(own, flow.size(own), *_extremes(flow, loop, own, slow))


def _extremes(flow: Flow, loop: Loop, own: frozenset[int], slow: frozenset[int]) -> tuple[int, int]:
    """Shortest and longest path; through retry blocks only where there is no way around them."""
    weight = {b: len(flow.blocks[b]) if b in own | slow else 0 for b in loop.blocks}
    for allowed in (loop.blocks - slow, loop.blocks):
        lengths = _lengths(flow, loop.header, allowed, weight)
        if lengths:
            return lengths
    return flow.size(own), flow.size(own)


def _lengths(
    flow: Flow, header: int, allowed: frozenset[int], weight: dict[int, int]
) -> tuple[int, int] | None:
    """Extreme path lengths header -> header inside `allowed`; None when there is no such path.

    Edges into the header are cut; what is still cyclic (inner loops) is one node of the sum of its
    weights.
    """
    cut = [[s for s in following if s != header] for following in flow.successors]
    order = components(allowed, cut)  # every component comes after those it leads to
    of_block = {b: i for i, component in enumerate(order) for b in component}
    best: dict[int, tuple[int, int]] = {}
    for i, component in enumerate(order):
        length = sum(weight[b] for b in component)
        after = [
            best[of_block[s]]
            for b in component
            for s in cut[b]
            if s in of_block and of_block[s] in best
        ]
        if any(header in flow.successors[b] for b in component):
            after.append((0, 0))
        if after:
            best[i] = (length + min(a for a, _ in after), length + max(a for _, a in after))
    return best.get(of_block[header])
