"""Which warp role an instruction belongs to.

The compiler inlines everything and keeps the innermost source line (no `inlined_at` in DSL 4.8.1),
so a line of numerics/ or pipeline/ does not say which role called it. Control flow does: after the
dispatch on the warp index every basic block belongs to one role. A block takes the role of its
lines in warps/; a block without any takes that of its dominator, else of what it dominates. The
entry block belongs to the kernel.
"""

from __future__ import annotations

from collections import Counter

from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.plan_base import CHIPS
from fa4.problem import example_problem
from fa4.profile.flow import Flow
from fa4.profile.sass import Instruction

KERNEL = "kernel"  # set-up, dispatch and tear-down that no role owns

# Files of warps/, without their suffix, that are a role of some plan; others, as work.py, are none.
ROLES = frozenset(
    plan.folder + role
    for arch in CHIPS
    for plan in (
        plan_forward(example_problem(64), arch),
        plan_backward(example_problem(64), arch),
    )
    for role in plan.roles
)


def role_of_line(instruction: Instruction) -> str:
    """Role named by the file in `warps/` in the inline chain, outermost first; empty if none."""
    for frame in reversed(instruction.frames):
        _, found, file = frame.path.replace("\\", "/").rpartition("/warps/")
        if found and file.removesuffix(".py") in ROLES:
            return file.rpartition("/")[2].removesuffix(".py")
    return ""


def block_roles(flow: Flow) -> list[str]:
    """Role of every basic block; `KERNEL` for those of none."""
    own = [_majority(block) for block in flow.blocks]
    dominator = _dominators(flow)
    below = _roles_below(own, dominator)
    roles = list(own)
    for block in _by_depth(dominator):
        if not roles[block]:
            inherited = roles[dominator[block]] if block else ""
            only = next(iter(below[block])) if block and len(below[block]) == 1 else ""
            roles[block] = inherited or only
    return [role or KERNEL for role in roles]


def register_budgets(flow: Flow) -> dict[str, set[int]]:
    """Registers that setmaxnreg grants to each role of a PTX kernel.

    The grant of a block is that of the nearest block which all ways to it pass; blocks before any
    do not count.
    """
    dominator = _dominators(flow)
    budget: dict[int, int] = {}
    for block in _by_depth(dominator):
        granted = [i.operands for i in flow.blocks[block] if i.opcode.startswith("setmaxnreg")]
        if granted:
            budget[block] = int(granted[-1])
        elif dominator[block] in budget:
            budget[block] = budget[dominator[block]]
    budgets: dict[str, set[int]] = {}
    for block, role in enumerate(block_roles(flow)):
        if role != KERNEL and block in budget:
            budgets.setdefault(role, set()).add(budget[block])
    return budgets


def _majority(code: list[Instruction]) -> str:
    votes = Counter(filter(None, map(role_of_line, code)))
    return votes.most_common(1)[0][0] if votes else ""


def _roles_below(own: list[str], dominator: list[int]) -> list[set[str]]:
    """Roles of the blocks that each block dominates, itself included."""
    below = [{role} - {""} for role in own]
    for block in reversed(_by_depth(dominator)):
        if block:
            below[dominator[block]] |= below[block]
    return below


def _by_depth(dominator: list[int]) -> list[int]:
    """Blocks of the dominator tree, parents before children."""
    depth = {0: 0}

    def of(block: int) -> int:
        path = []
        while block not in depth:
            path.append(block)
            block = dominator[block]
        for i, node in enumerate(reversed(path)):
            depth[node] = depth[block] + i + 1
        return depth[path[0] if path else block]

    return sorted(range(len(dominator)), key=of)


def _dominators(flow: Flow) -> list[int]:
    """Immediate dominator of every block (Cooper, Harvey, Kennedy 2001); the entry's is itself.

    Blocks that only an indirect branch reaches count as children of the entry.
    """
    order = _reverse_postorder(flow)
    number = {block: i for i, block in enumerate(order)}
    dominator: dict[int, int] = {0: 0}

    def common(a: int, b: int) -> int:
        while a != b:
            while number[a] > number[b]:
                a = dominator[a]
            while number[b] > number[a]:
                b = dominator[b]
        return a

    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [p for p in flow.predecessors[block] if p in dominator]
            new = known[0]
            for other in known[1:]:
                new = common(new, other)
            if dominator.get(block) != new:
                dominator[block] = new
                changed = True
    return [dominator.get(block, 0) for block in range(len(flow.blocks))]


def _reverse_postorder(flow: Flow) -> list[int]:
    """Blocks reachable from the entry."""
    seen, finished = {0}, []
    work = [(0, iter(flow.successors[0]))]
    while work:
        block, following = work[-1]
        child = next((c for c in following if c not in seen), None)
        if child is None:
            finished.append(block)
            work.pop()
        else:
            seen.add(child)
            work.append((child, iter(flow.successors[child])))
    return finished[::-1]
