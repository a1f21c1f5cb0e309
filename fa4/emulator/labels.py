"""Names for warps and barriers, so that reports speak of roles and edges instead of numbers.

A kernel built here hands its edge table over as `Labels`; third-party kernels have none, and the
emulator then reports warp numbers, PTX lines and the source lines of `.loc`.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BarrierLabel:
    """One barrier of a pipeline edge.

    `edge` is the edge's name in the past tense (`scores_computed`), `stage` its ring index,
    `producers` and `consumers` the roles that signal it and wait for it.
    """

    edge: str
    stage: int = 0
    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.edge}[{self.stage}]"


@dataclass(frozen=True)
class Labels:
    """Names of one kernel's warps and barriers. Every part is optional.

    `warps`: role of warp i of a CTA. `mbarriers`: by byte offset in dynamic shared memory.
    `named_barriers`: by hardware barrier id (0-15).
    """

    warps: tuple[str, ...] = ()
    mbarriers: dict[int, BarrierLabel] = field(default_factory=dict)
    named_barriers: dict[int, BarrierLabel] = field(default_factory=dict)

    def role(self, warp: int) -> str:
        """Role of a warp, or `warp 7` when it has no label."""
        return self.warps[warp] if warp < len(self.warps) else f"warp {warp}"
