"""All that `fa4 inspect` knows about the kernel of one plan."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from fa4.compile import Artifacts
from fa4.plan_backward_base import BackwardPlan
from fa4.plan_base import BasePlan
from fa4.profile.classes import ptx_class
from fa4.profile.compute_loop import ComputeLoop, compute_loop
from fa4.profile.disassembler import find_nvdisasm
from fa4.profile.elf import Resources, read_resources
from fa4.profile.flow import Flow
from fa4.profile.ptx import parse_ptx
from fa4.profile.roles import block_roles, register_budgets
from fa4.profile.static import Analysis, analyse
from fa4.profile.summary import Summary, summarise


@dataclass(frozen=True)
class RoleView:
    """One role. warps: first and one past the last. registers: per thread, as the plan wants them;
    honoured: whether the machine code asks for them. ptx: instructions by class.
    """

    role: str
    warps: tuple[int, int]
    registers: int
    honoured: bool
    ptx: dict[str, int]


@dataclass(frozen=True)
class BarrierView:
    """One edge of the table. full, empty: byte offset of its first mbarrier in dynamic shared
    memory, arrive counts beside it; empty is None when another edge implies the release.
    """

    edge: str
    producer: str
    consumer: str
    kind: str
    stages: int
    full: int
    arrivals: int
    empty: int | None
    releases: int | None
    meaning: str


@dataclass(frozen=True)
class Report:
    """The report. notes: more about memory. analysis is None without nvdisasm; summary is of a
    forward kernel, compute of a backward one.
    """

    kernel: str
    arch: str
    resources: Resources
    smem_bytes: int
    smem: dict[str, int]
    notes: tuple[str, ...]
    roles: tuple[RoleView, ...]
    barriers: tuple[BarrierView, ...]
    analysis: Analysis | None
    summary: Summary | None
    compute: ComputeLoop | None


def report(plan: BasePlan, artifacts: Artifacts) -> Report:
    """Everything about one compiled plan."""
    resources = kernel_resources(artifacts)
    analysis = analyse(artifacts.cubin, resources.kernel) if find_nvdisasm() else None
    memory, backward = plan.smem(), isinstance(plan, BackwardPlan)
    return Report(
        kernel=artifacts.kernel_name,
        arch=plan.arch,
        resources=resources,
        smem_bytes=memory.nbytes,
        smem=dict(memory.tiles),
        notes=tuple(plan.notes()),
        roles=_roles(plan, artifacts),
        barriers=_barriers(plan),
        analysis=analysis,
        summary=summarise(analysis, plan) if analysis and not backward else None,
        compute=compute_loop(analysis, plan) if analysis and backward else None,
    )


def unmet_registers(plan: BasePlan, artifacts: Artifacts) -> dict[str, int]:
    """Roles that do not get the registers of the plan, with those; empty when all do.

    Each role must ask for its own in the PTX, and ptxas must not have ignored the number.
    """
    found = kernel_resources(artifacts)
    asked, granted = (
        register_budgets(Flow(parse_ptx(artifacts.ptx, found.kernel))),
        found.setmaxnreg,
    )
    return {
        name: role.registers
        for name, role in plan.roles.items()
        # an idle warp has no code of its own that could ask
        if asked.get(name, {role.registers}) != {role.registers} or role.registers not in granted
    }


def kernel_resources(artifacts: Artifacts) -> Resources:
    """Those of the kernel with the plan's name, and a number, as its entry name."""
    name = re.compile(re.escape(artifacts.kernel_name) + r"(_\d+)?")
    found = [r for r in read_resources(artifacts.cubin) if name.fullmatch(r.kernel)]
    if len(found) != 1:
        raise ValueError(f"expected one kernel named {artifacts.kernel_name}, found {len(found)}")
    return found[0]


def ptx_by_role(ptx: str, kernel: str) -> dict[str, Counter[str]]:
    """PTX instructions of each role by class."""
    flow = Flow(parse_ptx(ptx, kernel))
    counts: dict[str, Counter[str]] = {}
    for role, code in zip(block_roles(flow), flow.blocks, strict=True):
        counts.setdefault(role, Counter()).update(ptx_class(ins.opcode) for ins in code)
    return counts


def _roles(plan: BasePlan, artifacts: Artifacts) -> tuple[RoleView, ...]:
    counts = ptx_by_role(artifacts.ptx, kernel_resources(artifacts).kernel)
    ignored = unmet_registers(plan, artifacts)
    return tuple(
        RoleView(
            role=name,
            warps=(role.first, role.end),
            registers=role.registers,
            honoured=name not in ignored,
            ptx=dict(counts.get(name, Counter()).most_common()),
        )
        for name, role in plan.roles.items()
    )


def _barriers(plan: BasePlan) -> tuple[BarrierView, ...]:
    memory, warps = plan.smem(), plan.warps_per_stage()
    return tuple(
        BarrierView(
            edge=edge.name,
            producer=edge.producer,
            consumer=edge.consumer,
            kind=edge.kind.value,
            stages=edge.stages,
            full=memory.full[edge.name],
            arrivals=edge.arrive_count(warps),
            empty=memory.empty.get(edge.name),
            releases=edge.release_count(warps, plan.q_tiles) if edge.has_release else None,
            meaning=edge.meaning,
        )
        for edge in plan.edges()
    )
