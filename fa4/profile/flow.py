"""Control flow of SASS or PTX: basic blocks, loops from back edges, paths through a loop body."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from fa4.profile.sass import Function, Instruction

_RETRY_LIMIT = 10  # instructions of an mbarrier retry: moves, a sleep, the wait, the branch back
_POLLS = ("TRYWAIT", "TRY_WAIT", "NANOSLEEP")


@dataclass(frozen=True)
class Loop:
    """`blocks` of a natural loop entered at block `header`; depth 0 is outermost."""

    header: int
    blocks: frozenset[int]
    depth: int


class Flow:
    """Basic blocks of a function and what follows them.

    blocks[i]: the instructions of block i in address order; successors[i], predecessors[i]: blocks.
    """

    def __init__(self, function: Function) -> None:
        code, labels = function.instructions, function.labels
        cuts = {0, len(code), *(at for at in labels.values() if at < len(code))}
        cuts |= {i + 1 for i, ins in enumerate(code) if ins.ends}
        starts = sorted(cuts)
        self.blocks = [code[a:b] for a, b in itertools.pairwise(starts)]
        at = {start: block for block, start in enumerate(starts[:-1])}
        self.successors = [
            self._successors(block, {name: at.get(i) for name, i in labels.items()})
            for block in range(len(self.blocks))
        ]
        self.predecessors: list[list[int]] = [[] for _ in self.blocks]
        for block, following in enumerate(self.successors):
            for other in following:
                self.predecessors[other].append(block)

    def _successors(self, block: int, block_of_label: dict[str, int | None]) -> list[int]:
        last = self.blocks[block][-1]
        following = []
        if last.ends == "branch" and block_of_label.get(last.target) is not None:
            following.append(block_of_label[last.target])
        if (not last.ends or last.conditional) and block + 1 < len(self.blocks):
            following.append(block + 1)
        return list(dict.fromkeys(following))

    def size(self, blocks: Iterable[int]) -> int:
        """Instructions in `blocks`."""
        return sum(len(self.blocks[block]) for block in blocks)

    def loops(self) -> list[Loop]:
        """The loop nest, outer loops first.

        Loops are strongly connected components; removing the entries of one leaves its inner
        loops. An out-of-line mbarrier retry that jumps back into a body does not confuse this.
        """
        found: list[Loop] = []
        self._nest(frozenset(range(len(self.blocks))), 0, found)
        return sorted(found, key=lambda loop: (min(loop.blocks), -len(loop.blocks)))

    def _nest(self, nodes: frozenset[int], depth: int, found: list[Loop]) -> None:
        for component in components(nodes, self.successors):
            single = next(iter(component))
            if len(component) == 1 and single not in self.successors[single]:
                continue
            entries = {b for b in component if set(self.predecessors[b]) - component}
            entries = entries or {min(component)}
            found.append(Loop(min(entries), component, depth))
            self._nest(component - entries, depth + 1, found)

    def is_retry(self, loop: Loop) -> bool:
        """Whether a loop only polls an mbarrier (or sleeps): it belongs to no counted body."""
        code = self.code(loop.blocks)
        polls = any(word in ins.opcode.upper() for ins in code for word in _POLLS)
        return len(code) < _RETRY_LIMIT and polls

    def code(self, blocks: Iterable[int]) -> list[Instruction]:
        """Instructions of `blocks` in address order."""
        return [ins for block in sorted(blocks) for ins in self.blocks[block]]


def components(nodes: frozenset[int], successors: list[list[int]]) -> list[frozenset[int]]:
    """Strongly connected components of the graph restricted to `nodes` (Tarjan, iterative)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    open_nodes: set[int] = set()
    components: list[frozenset[int]] = []
    for root in sorted(nodes):
        if root in order:
            continue
        work = [(root, iter(successors[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        open_nodes.add(root)
        while work:
            node, following = work[-1]
            child = next((c for c in following if c in nodes and c not in order), None)
            if child is not None:
                order[child] = low[child] = len(order)
                stack.append(child)
                open_nodes.add(child)
                work.append((child, iter(successors[child])))
                continue
            work.pop()
            low[node] = min([low[node], *(low[c] for c in successors[node] if c in open_nodes)])
            if low[node] == order[node]:
                component = set()
                while node not in component:
                    component.add(stack.pop())
                open_nodes -= component
                components.append(frozenset(component))
    return components
