"""The hook for those who watch a run: a timeline, a count. It costs one test per event when unused.

`session(observer=...)` or `Program.run(..., observer=...)` takes an `Observer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .barriers import Mbarrier, NamedBarrier
    from .cta import Cta
    from .team import Team
    from .waits import Wait


class Observer:
    """Told what happens during a run; override what is of interest."""

    def signalled(self, barrier: Mbarrier | NamedBarrier) -> None:
        """An arrival or the completion of a copy has just been counted; its phase may have ended.

        `barrier.cta.cluster.running` is the team that executes, `acting` its arriving lanes. Under
        schedules other than `early` effects of asynchronous engines come without a team of theirs.
        """

    def waited(self, team: Team, wait: Wait) -> None:
        """The team's current group goes on behind a wait, at once or after it had to stop."""

    def ended(self, cta: Cta) -> None:
        """The CTA has run to its end; the counters of its warps are complete."""
