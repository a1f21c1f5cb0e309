"""`session()`: run kernels that the CuTe DSL compiled on this machine's CPU."""

import contextlib
import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import ClassVar

from fa4.emulator.labels import Labels
from fa4.emulator.observe import Observer
from fa4.emulator.program import Launch, Program, Schedule
from fa4.emulator.tensors import CudaView, torch_extent

# cudaDeviceAttr numbers and what a B200 and an H200 answer (CUDA Runtime API)
_ATTRIBUTES = {
    1: 1024,  # threads per block
    2: 1024,  # block x, y, z
    3: 1024,
    4: 64,
    5: 2**31 - 1,  # grid x, y, z
    6: 65535,
    7: 65535,
    8: 49152,  # shared memory per block without opt-in
    10: 32,  # warp size
    12: 65536,  # registers per block
    39: 2048,  # threads per SM
    81: 233472,  # shared memory per SM
    82: 65536,  # registers per SM
    95: 1,  # cooperative launch
    97: 232448,  # shared memory per block with opt-in
    120: 1,  # cluster launch
}
_NUM_SMS, _L2_BYTES, _MAJOR, _MINOR = 16, 38, 75, 76


@dataclass(frozen=True)
class Device:
    """The GPU that host code sees inside a session."""

    num_sms: int = 148
    l2_bytes: int = 126 << 20
    capability: tuple[int, int] = (10, 0)

    def attribute(self, number: int) -> int:
        """Value of a cudaDeviceAttr. Raises NotImplementedError for one that is not known here."""
        own = {
            _NUM_SMS: self.num_sms,
            _L2_BYTES: self.l2_bytes,
            _MAJOR: self.capability[0],
            _MINOR: self.capability[1],
        }
        answers = _ATTRIBUTES | own
        if number not in answers:
            raise NotImplementedError(
                f"host code asked for cudaDeviceAttr {number} of the emulated device, which knows "
                f"{', '.join(map(str, sorted(answers)))}"
            )
        return answers[number]


DEVICES = {  # B200, H200
    "sm_100a": Device(148, 126 << 20, (10, 0)),
    "sm_90a": Device(132, 50 << 20, (9, 0)),
}


@dataclass(frozen=True)
class LaunchRecord:
    """One launch: the kernel's entry name, its configuration and the engine's `RunStats`."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    stats: object


@dataclass(eq=False)
class Session:
    """A context in which compiled functions launch into the emulator; see `session`."""

    schedule: str = "early"
    seed: int = 0
    arch: str = "sm_100a"
    labels: Labels | None = None
    device: Device | None = None
    observer: Observer | None = None
    check: bool = False
    resident: int | None = None
    implicit: bool = False  # opened for one launch on CPU tensors, see Hook.enter
    launches: list[LaunchRecord] = field(default_factory=list)
    name: ClassVar[str] = "fa4.emulator.session()"
    takes: ClassVar[str] = "cpu"  # the kind of device that the tensors of its launches are on

    def __post_init__(self) -> None:
        self._schedule = Schedule(self.schedule, self.seed, self.resident)
        if self.arch not in DEVICES:
            raise ValueError(f"arch={self.arch!r}: the emulator runs {', '.join(DEVICES)}")
        self.device = self.device or DEVICES[self.arch]
        check_num_sms(self.device.num_sms)
        self._registered: list[tuple[int, int, str]] = []
        self._before = None, None  # stream and touched words of the latest launch, if checked

    def register(self, memory: object, nbytes: int | None = None, name: str = "") -> None:
        """Allow kernels to reach this memory until the session ends.

        `memory` is a torch tensor, or an address with `nbytes`. Only raw pointers need it (`Int64`
        and `cute.Pointer` arguments): tensors given to a compiled function are known for that call.
        """
        if isinstance(memory, int):
            if nbytes is None or nbytes < 0:
                raise ValueError(f"register(address, nbytes): nbytes={nbytes!r} for an address")
            found = (memory, nbytes) if nbytes else None
        else:
            tensor = memory.tensor if isinstance(memory, CudaView) else memory
            if tensor.device.type != "cpu":
                raise ValueError(f"register takes host memory, got a tensor on {tensor.device}")
            found = torch_extent(tensor)
        if found is not None:
            self._registered.append((*found, name or f"registered {len(self._registered)}"))

    @contextlib.contextmanager
    def lend(
        self, memory: Mapping[str, object], labels: Labels | None = None
    ) -> Iterator["Session"]:
        """Register tensors by name, and name warps and barriers, for the launches of one block."""
        registered, labels_before = list(self._registered), self.labels
        try:
            for name, tensor in memory.items():
                self.register(tensor, name=name)
            self.labels = labels or labels_before
            yield self
        finally:
            self._registered, self.labels = registered, labels_before

    def launch(self, raw: object, ranges: Iterable[tuple[int, int]]) -> None:
        """Run one launch in the engine; called by the hook."""
        from fa4.emulator.memory import GlobalMemory

        program = Program.from_ptx(raw.kernel.ptx, raw.kernel.name)
        _check_target(program.kernel.target, self.arch)
        memory = GlobalMemory()
        for address, nbytes, name in self._registered:
            memory.add(address, nbytes, name)
        for i, (address, nbytes) in enumerate(ranges):
            memory.add(address, nbytes, f"tensor argument {i}")
        params = _pack_parameters(program.params, raw.arguments)
        (stream, touched), self._before = self._before, (None, None)  # also if this one raises
        launch = Launch(
            *(raw.grid, raw.block, raw.cluster, raw.smem_bytes, params),
            sm_count=self.device.num_sms,
            unordered=touched if raw.dependent and raw.stream == stream else None,
        )
        watching = self.labels, self.observer
        stats = program.run(launch, memory, self._schedule, *watching, check=self.check)
        self._before, stats.touched = (raw.stream, stats.touched), None  # one's are enough
        self.launches.append(
            LaunchRecord(raw.kernel.name, raw.grid, raw.block, raw.cluster, raw.smem_bytes, stats)
        )

    def __enter__(self) -> "Session":
        from fa4.emulator.hook import the_hook

        the_hook().enter(self, self.implicit)
        self._before = None, None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from fa4.emulator.hook import the_hook

        the_hook().leave(self)
        if kind is None:
            self._raise_findings()

    def _raise_findings(self) -> None:
        found: dict[str, list] = {}
        for launch in self.launches:
            if launch.stats.findings:
                found.setdefault(launch.name, []).extend(launch.stats.findings)
        if found:
            from fa4.emulator.checker.findings import CheckError

            raise CheckError(found)


def session(
    schedule: str = "early",
    seed: int = 0,
    arch: str = "sm_100a",
    labels: Labels | None = None,
    num_sms: int | None = None,
    observer: Observer | None = None,
    check: bool = False,
    resident: int | None = None,
) -> Session:
    """Open an emulator session: any function of the CuTe DSL called inside runs on the CPU.

        with fa4.emulator.session(schedule="priority", seed=3) as emulated:
            compiled(q, k, v)
        print(emulated.launches[0].stats)

    Needs no GPU, CUDA driver or C compiler. `schedule` decides when asynchronous effects and warps
    happen: "early" (at issue), "late" (only when every warp waits), "random", "priority" (random
    strict priorities per warp); the last two follow `seed`. `labels` names warps and barriers in
    reports. `arch` is sm_100a (a B200) or sm_90a (an H200). `num_sms` is what host code sees, and
    so how many CTAs a persistent kernel starts: a small number gives each CTA several tiles.
    `observer` is told of every wait and arrival.

    `check` looks for races on shared and tensor memory, missing fences and waits, and wrong use of
    barriers, whatever order the schedule took; when there are any, the session raises CheckError at
    its end, and until then they are in each launch's `stats.findings`. It takes about three times
    as long.

    `resident` CTAs (clusters of them) run side by side, as on a GPU of so many SMs: for kernels
    whose CTAs wait for each other through global memory, or change it in any order. None runs one
    after another in grid order, and starts later ones where one polls.

    Tensors live in host memory; CPU tensors given to `from_dlpack` or to a TVM-FFI function count
    as CUDA tensors. Compile inside the session, or before it inside `keep_ptx()`. Errors of the
    engine (`EmulatorError`) come out of the call as they are. Sessions nest; the innermost counts.
    """
    device = DEVICES.get(arch)
    if device is not None and num_sms is not None:
        device = replace(device, num_sms=num_sms)
    return Session(schedule, seed, arch, labels, device, observer, check, resident)


def check_num_sms(num_sms: int) -> None:
    """Raises ValueError for what no GPU has, and no persistent grid can be made of."""
    if num_sms < 1:
        raise ValueError(f"num_sms={num_sms}: at least one SM is needed")


# Those that a user opened, innermost last; the hook appends and removes them.
open_sessions: list[Session] = []


def current_session() -> Session | None:
    """The innermost session of this process that a user opened and has not closed."""
    innermost = open_sessions[-1:]  # one look: another thread may close it
    return innermost[0] if innermost else None


def _check_target(target: str, arch: str) -> None:
    """Raises LaunchError unless a GPU of `arch` runs PTX for `target`.

    PTX with suffix `a` runs on that very architecture, with `f` on its family, other on later ones.
    """
    from fa4.emulator.errors import LaunchError

    number = int(target.removeprefix("sm_").rstrip("af"))
    here = int(arch.removeprefix("sm_").rstrip("a"))
    if target.endswith("a"):
        runs = target == arch
    elif target.endswith("f"):
        runs = number // 10 == here // 10 and number <= here
    else:
        runs = number <= here
    if not runs:
        raise LaunchError(
            f"the kernel is compiled for {target} and this session stands for a GPU of {arch}: "
            f"open it with session(arch=...), or compile inside it (fa4's own calls: set "
            f"FA4_EMULATE_ARCH)"
        )


def _pack_parameters(params: Iterable[object], arguments: int) -> bytes:
    """Kernel parameter space: each parameter copied from its host address to its PTX offset."""
    params = list(params)
    if not params:
        return b""
    packed = bytearray(max(p.offset + p.size for p in params))
    pointers = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))
    for i, param in enumerate(params):
        packed[param.offset : param.offset + param.size] = ctypes.string_at(pointers[i], param.size)
    return bytes(packed)
