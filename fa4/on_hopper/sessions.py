"""`session()`: run kernels that the CuTe DSL compiled for sm_100a on a Hopper GPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import ClassVar

import torch

from fa4.emulator.cuda_runtime import RawLaunch
from fa4.emulator.hook import the_hook
from fa4.emulator.sessions import Device, check_num_sms
from fa4.on_hopper import driver
from fa4.on_hopper import workspace as ws
from fa4.on_hopper.arguments import ExtendedArguments
from fa4.on_hopper.instructions import NotCovered
from fa4.on_hopper.modes import Modes
from fa4.on_hopper.rewrite import Rewritten, rewrite

CAPABILITY = (9, 0)


@dataclass(frozen=True)
class LaunchRecord:
    """One launch, which has ended: `seconds` from its start to when the host saw it end."""

    name: str
    grid: tuple[int, int, int]
    smem_bytes: int
    seconds: float


@dataclass(eq=False)
class Session:
    """A context in which compiled functions launch on Hopper; see `session`."""

    modes: Modes = field(default_factory=Modes)
    seed: int = 0
    num_sms: int | None = None
    time_limit: float = 60.0
    launches: list[LaunchRecord] = field(default_factory=list)
    arch: ClassVar[str] = "sm_100a"
    name: ClassVar[str] = "fa4.on_hopper.session()"
    takes: ClassVar[str] = "cuda"

    def __post_init__(self) -> None:
        if self.num_sms is not None:
            check_num_sms(self.num_sms)
        self._one_at_a_time = threading.Lock()
        self._workspaces: dict[int, torch.Tensor] = {}

    @property
    def device(self) -> Device:
        """The GPU that host code sees: a Blackwell with the SMs and the L2 of this one."""
        here = torch.cuda.get_device_properties(torch.cuda.current_device())
        sms = here.multi_processor_count if self.num_sms is None else self.num_sms
        return Device(sms, here.L2_cache_size, (10, 0))

    @contextlib.contextmanager
    def lend(self, _memory: Mapping[str, object], _labels: object = None) -> Iterator[Session]:
        """The tensors of a launch: nothing to do, a GPU finds its memory."""
        yield self

    def launch(self, raw: RawLaunch, _ranges: Iterable[tuple[int, int]]) -> None:
        """Rewrite and run one launch to its end; called by the hook."""
        require_hopper(torch.cuda.current_device())
        made = rewritten(raw.kernel.ptx, raw.kernel.name, self.modes)
        check_shape(raw, made)
        with self._one_at_a_time:
            device = torch.cuda.current_device()
            function = _function(made, raw.smem_bytes, device)
            workspace = self._workspace(device)
            seed = self.seed + 0x10001 * len(self.launches) & 0xFFFFFFFF
            arguments = ExtendedArguments(raw.arguments, made.params, workspace.data_ptr(), seed)
            shape = (raw.grid, made.threads)
            driver.launch(function, shape, raw.smem_bytes, raw.stream, arguments.address)
            seconds = driver.wait(raw.stream, self.time_limit, lambda: f"kernel {made.entry}")
            raise_fault(workspace, made.entry)
            self.launches.append(LaunchRecord(made.entry, raw.grid, raw.smem_bytes, seconds))

    def _workspace(self, device: int) -> torch.Tensor:
        """Tensor memory and tensor core of every SM, (SM, 32-bit words)."""
        if device not in self._workspaces:
            self._workspaces[device] = torch.zeros(
                (ws.MAX_SMS, ws.STRIDE // 4), dtype=torch.int32, device=device
            )
            torch.cuda.synchronize(device)
        return self._workspaces[device]

    def __enter__(self) -> Session:
        if not torch.cuda.is_available():
            raise RuntimeError(
                "fa4.on_hopper.session() needs a Hopper GPU, and torch finds no CUDA device; "
                "fa4.emulator.session() runs the same kernels on the CPU"
            )
        require_hopper(torch.cuda.current_device())
        the_hook().enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        the_hook().leave(self)


def session(
    skew: float = 0.0,
    defer: bool = False,
    lazy: bool = False,
    poison: bool = False,
    seed: int = 0,
    num_sms: int | None = None,
    time_limit: float = 60.0,
) -> Session:
    """Open a session in which kernels compiled for sm_100a run on this machine's Hopper GPU.

        with fa4.on_hopper.session(skew=100.0, defer=True, lazy=True, poison=True):
            out = fa4.flash_attn_func(q, k, v)  # CUDA tensors; the Blackwell kernel

    Tensor memory, its MMA and packed float32 arithmetic are software; TMA, mbarriers, warps and
    memory are the GPU's. Modes (see `Modes`): `skew` microseconds of sleep for some warps, `defer`
    MMAs to their commit, `lazy` stores to tensor memory, `poison`ed memory. `seed` chooses who is
    slow, and when. `num_sms` is what host code sees, and so how many CTAs a persistent kernel
    starts. A launch returns when it has ended.

    Cannot be seen this way: a missing tcgen05.wait::ld, tcgen05.fence or proxy fence before an MMA,
    a missing griddepcontrol.wait, since no two launches overlap, faults of setmaxnreg, and time.

    Raises ValueError for `num_sms` below 1; RuntimeError without a GPU of compute capability 9.0,
    or if the driver cannot compile the rewritten kernel; NotCovered for an instruction that is not
    covered, with its PTX line; TimeoutError for a launch that runs longer than `time_limit`
    seconds. Sessions nest; the innermost counts.
    """
    return Session(Modes(skew, defer, lazy, poison), seed, num_sms, time_limit)


def gpu_lost(error: Exception) -> bool:
    """Whether this process can launch nothing more after an error on the current CUDA device.

    So it is when a kernel still runs, which is a TimeoutError, and after a fault in one.
    """
    if isinstance(error, TimeoutError):
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def no_hopper() -> str:
    """Why the current CUDA device can run no session; empty if it can."""
    if not torch.cuda.is_available():
        return "no GPU"
    capability = torch.cuda.get_device_capability()
    if capability == CAPABILITY:
        return ""
    major, minor = capability
    return f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}, not 9.0"


@cache
def require_hopper(device: int) -> None:
    """Raises RuntimeError unless the CUDA device is a Hopper GPU."""
    capability = torch.cuda.get_device_capability(device)
    if capability != CAPABILITY:
        raise RuntimeError(
            f"cuda:{device} is {torch.cuda.get_device_name(device)} of compute capability "
            f"{capability[0]}.{capability[1]}; fa4.on_hopper runs on 9.0 (H100, H200)"
        )


@cache
def rewritten(ptx: str, entry: str, modes: Modes) -> Rewritten:
    """`rewrite`, once per kernel and modes."""
    return rewrite(ptx, entry, modes)


@cache
def _function(made: Rewritten, smem_bytes: int, _device: int) -> object:
    """The kernel on the current device, `_device`."""
    return driver.load(made.ptx, made.entry, smem_bytes)


def check_shape(raw: RawLaunch, made: Rewritten) -> None:
    if raw.block != (made.own_threads, 1, 1) or raw.cluster != (1, 1, 1):
        raise NotCovered(
            f"kernel {made.entry} launched with block {raw.block} and cluster {raw.cluster}; "
            f"covered: block ({made.own_threads}, 1, 1) and no clusters"
        )


def raise_fault(workspace: torch.Tensor, entry: str) -> None:
    """Raises NotCovered for what a tensor core could not do."""
    first = ws.FAULT // 4
    found = workspace[:, first : first + 4].cpu()
    for code, *details in found[found[:, 0] != 0].tolist():
        workspace[:, first : first + 4].zero_()
        text = ws.FAULTS[code].format(*(value & 0xFFFFFFFF for value in details))
        raise NotCovered(f"kernel {entry}: {text}")
