"""Words for accesses: roles, places, what would have ordered them, and the edge for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .clocks import ASYNC, GENERIC, GRID_BEFORE, NEVER
from .findings import Access, Finding

if TYPE_CHECKING:
    from .checker import ClusterChecker
    from .records import Records

_ENGINES = {
    "mbarrier": "the copy engine",
    "bulk store": "the copy engine",
    "bulk write": "the copy engine",
    "tensor core": "the tensor core",
    "wgmma": "the tensor core",
    "cp.async": "cp.async",
}
_MISSING = {
    "bulk store": "a cp.async.bulk.wait_group of the first warp, and a barrier behind it",
    "bulk write": "a cp.async.bulk.wait_group (without .read) of the first warp, and a barrier",
    "tensor core": "a tcgen05.commit behind the MMA, and a wait for its mbarrier",
    "wgmma": "a wgmma.wait_group of the first warp, and a barrier behind it",
    "cp.async": "a cp.async.wait_group of the first warp, and a barrier behind it",
    "tcgen05.ld": "a tcgen05.wait::ld of the first warp, and a barrier behind it",
    "tcgen05.st": "a tcgen05.wait::st of the first warp, and a barrier behind it",
    "warp": "a barrier between the two warps",
}
_WORDS = {
    "read": "is read while a write of it may still be under way",
    "write": "is written while another write may still be under way",
    "overwrite": "is overwritten while a read of it may still be under way",
}


class Naming:
    """Turns records into findings."""

    def __init__(self, checker: ClusterChecker) -> None:
        self.checker = checker

    def who(self, slot: int) -> str:
        warp = slot % self.checker.per_cta
        role = self.checker.launch.role(warp)
        return role if role == f"warp {warp}" else f"{role} (warp {warp})"

    def access(self, slot: int, site: int, kind: str = "", cluster: int | None = None) -> Access:
        """An access by a warp of this cluster, or of another one."""
        launch = self.checker.launch
        rank, warp = divmod(slot, self.checker.per_cta)
        position = launch.clusters[self.checker.number if cluster is None else cluster].positions
        instruction = launch.program.kernel.instructions[site]
        return Access(instruction, launch.role(warp), warp, position[rank], _ENGINES.get(kind, ""))

    def _of_record(self, records: Records, number: int) -> Access:
        slot, site = int(records.slot[number]), int(records.site[number])
        return self.access(
            slot, site, self._actor(records, number)[0], self._cluster(records, number)
        )

    def _cluster(self, records: Records, number: int) -> int:
        """Only accesses to global memory may be those of another cluster."""
        return self.checker.number if records is self.checker.records else records.cluster[number]

    def _actor(self, records: Records, number: int) -> tuple:
        names = self.checker.launch.clusters[self._cluster(records, number)].actors
        return names[records.actor[number]]

    def race(self, where: tuple[str, Records], kind: str, first: int, second: int) -> None:
        """A finding about two records; `first` 0 for memory that nobody has written."""
        memory, records = where
        sites = int(records.site[first]), int(records.site[second])
        later = self._of_record(records, second)
        if first == 0:
            key = ("unwritten", sites[1], later.role)
            message = f"{memory} is read that nobody has written"
            self.checker.launch.add(key, lambda: Finding("unwritten", message, None, later))
            return
        if records.actor[first] == GRID_BEFORE:
            key = ("grid before", kind, sites[1], later.role)
            message = f"{memory} {_WORDS[kind]}, by the grid before"
            missing = "a griddepcontrol.wait of this warp, or of one that signals it"
            self.checker.launch.add(key, lambda: Finding("race", message, None, later, missing))
            return
        if self._lacks_only_a_proxy_fence(records, first, second) and (
            self._actor(records, first)[0] == "cp.async"
        ):
            words = "words that cp.async wrote reach an engine without a fence.proxy.async"
            self.checker.remark(int(records.slot[second]), sites[1], words)
            return
        earlier = self._of_record(records, first)
        key = (kind, sites, earlier.role, later.role)
        message = f"{memory} {_WORDS[kind]}"
        self.checker.launch.add(
            key,
            lambda: Finding(
                *("race", message, earlier, later),
                self._missing(where, first, second),
                self._edge(records, first, second),
            ),
        )

    def _missing(self, where: tuple[str, Records], first: int, second: int) -> str:
        """What would have ordered the two."""
        memory, records = where
        if self._cluster(records, first) != self.checker.number:
            return "a release by the first CTA and an acquire by the second"
        actor, step = int(records.actor[first]), int(records.step[first])
        known = self.checker.clocks.warps[records.slot[second]]
        kind = self._actor(records, first)[0]
        if kind == "mbarrier":
            done = "its completion" if step == NEVER else f"phase {step - 1}"
            return f"a wait for {done} of {self._barrier(records, first)}"
        if memory == "tensor memory" and known[GENERIC, actor] >= step:
            return (
                "tcgen05.fence::before_thread_sync between the first access and the barrier, or "
                "tcgen05.fence::after_thread_sync between the barrier and the second"
            )
        if self._lacks_only_a_proxy_fence(records, first, second):
            return "a fence.proxy.async between the first access and the second"
        return _MISSING[kind]

    def _lacks_only_a_proxy_fence(self, records: Records, first: int, second: int) -> bool:
        actor, step = int(records.actor[first]), int(records.step[first])
        known = self.checker.clocks.warps[records.slot[second]]
        same = self._cluster(records, first) == self.checker.number
        behind = known[GENERIC, actor] >= step > known[ASYNC, actor]
        return bool(same and records.generic[first] and behind)

    def _barrier(self, records: Records, number: int) -> str:
        _, rank, offset = self._actor(records, number)
        return self.checker.cluster.ctas[rank].barrier_name(offset)

    def _edge(self, records: Records, first: int, second: int) -> str:
        """Edges of the table from the role of the first access to that of the second."""
        labels, actor = self.checker.launch.labels, self._actor(records, first)
        if labels is None:
            return ""
        if actor[0] == "mbarrier":
            label = self.checker.cluster.ctas[actor[1]].label(actor[2])
            return str(label) if label else ""
        roles = [self._of_record(records, number).role for number in (first, second)]
        every = (*labels.mbarriers.values(), *labels.named_barriers.values())
        names = {
            label.edge
            for label in every
            if roles[0] in label.producers and roles[1] in label.consumers
        }
        return " or ".join(sorted(names))
