"""Torch tensors -> arguments of the compiled host function -> a launch on their device.

What shapes, strides and options decide is prepared once; a launch then fills in addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

import cuda.bindings.runtime as cudart
import torch

from fa4.arguments import SIZES, pack_per_call, pack_rest
from fa4.compile import HostFunction, host_function
from fa4.emulator import BarrierLabel, Labels, Session, current_session
from fa4.emulator.hook import the_hook
from fa4.emulator.patching import PROCESS_STATE
from fa4.emulator.sessions import open_sessions
from fa4.pipeline.storage import MBARRIER_BYTES
from fa4.plan_base import CHIPS, DTYPE_BYTES, BasePlan
from fa4.plan_hopper import HopperPlan
from fa4.problem import Problem
from fa4.tile_counter import TileCounters, tile_counters

Strides = tuple[int, ...]
Launch = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], None
]


def prepare(
    problem: Problem,
    plan: BasePlan,
    strides: tuple[Strides, Strides, Strides, Strides],
    device: torch.device,
    with_lse: bool,
) -> Launch:
    """What runs attention: `launch(q, k, v, out, lse)`, on the current stream of a CUDA device,
    which must be the current one, or in a session.

    Shapes: q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv), out (B, Sq, H, Dv), lse (B, H, Sq)
    float32 and contiguous, or None without `with_lse`: then none is written. `strides`, in
    elements, are those of q, k, v and out; bases and all strides but the last (1) are multiples of
    16 bytes. A launch checks none of this. Threads may share it.

    Compiles and loads the kernel of a CUDA device. Raises ValueError inside a session that takes
    tensors of another kind of device, here and at each launch.
    """
    rest, here = _rest(problem, plan, strides, with_lse), current_session()
    check_session(here, device)
    if device.type == "cpu" or here is not None:
        return _SessionLaunch(plan, rest)
    with torch.cuda.device(device):
        return _NativeLaunch(
            plan,
            host_function(plan, emulated=False),
            rest,
            device.index,
            num_sms(device),
            tile_counters(device) if isinstance(plan, HopperPlan) else None,
        )


@cache
def num_sms(device: torch.device) -> int:
    """Of a CUDA device: as many CTAs as a persistent grid has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


@dataclass(frozen=True, slots=True)
class _NativeLaunch:
    """The warm path: what it can know before, it knows.

    The torch._C functions are those behind torch.cuda.current_device and current_stream, at a tenth
    of the price.
    """

    plan: BasePlan
    entry: HostFunction
    rest: bytes
    device: int
    num_sms: int
    counters: TileCounters | None

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        if open_sessions:
            refuse_session(q)
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        block = pack_per_call(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            0 if lse is None else lse.data_ptr(),
            self.counters.address(stream) if self.counters else 0,
            self.num_sms,
        )
        check_launch(self.entry(block + self.rest, stream), self.plan)


@dataclass(frozen=True, slots=True)
class _SessionLaunch:
    """Launches in the innermost open session, or in one of the emulator's with its defaults."""

    plan: BasePlan
    rest: bytes

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        plan, counter = self.plan, _emulated_counter()
        tensors = {"q": q, "k": k, "v": v, "o": out, "lse": lse, "tile_counter": counter}
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors.values()]
        with (
            PROCESS_STATE,
            _zero_if_aborted(counter),
            emulating(plan, q.device, tensors) as (here, stream),
        ):
            block = pack_per_call(*addresses, here.device.num_sms) + self.rest
            check_launch(host_function(plan, emulated=True)(block, stream), plan)


@contextmanager
def emulating(
    plan: BasePlan, device: torch.device, tensors: Mapping[str, torch.Tensor | None]
) -> Iterator[tuple[Session, int]]:
    """A session and a stream for one launch, which may reach the tensors; other threads wait."""
    memory = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with PROCESS_STATE, ExitStack() as stack:
        here = current_session() or stack.enter_context(Session(arch=plan.arch, implicit=True))
        check_session(here, device)
        stack.enter_context(here.lend(memory, labels(plan)))
        stack.enter_context(the_hook().call())
        yield here, _stream_of(device, stack)


def check_launch(error: int, plan: BasePlan) -> None:
    """Raise RuntimeError for what a host function returns unless it is 0."""
    if error:
        name = cudart.cudaError_t(error).name
        raise RuntimeError(f"The launch of {plan.name} failed with {name}.")


def _stream_of(device: torch.device, stack: ExitStack) -> int:
    """Makes a CUDA device the current one, within `stack`; its current stream. 0 for the CPU."""
    if device.type != "cuda":
        return 0
    stack.enter_context(torch.cuda.device(device))
    return torch.cuda.current_stream().cuda_stream


def check_session(here: Session | None, device: torch.device) -> None:
    """What is loaded in a session stays bound to it, and would see addresses of another memory."""
    if here is not None and here.takes != device.type:
        raise ValueError(
            f"q is on {device} inside {here.name}, which takes {here.takes} tensors; "
            "pass those, or call outside of the session."
        )


def refuse_session(q: torch.Tensor) -> None:
    """Raise ValueError for a native launch inside a session."""
    here = current_session()
    if here is not None:
        check_session(here, q.device)
        raise ValueError(f"a native launch inside {here.name}; call outside of the session.")


@contextmanager
def _zero_if_aborted(counter: torch.Tensor) -> Iterator[None]:
    """A launch that does not end leaves its count behind, and the next one would skip tiles."""
    try:
        yield
    except BaseException:  # an interrupt, too
        counter.zero_()
        raise


@cache
def _emulated_counter() -> torch.Tensor:
    """One for all launches: emulated ones do not overlap, and each must leave a zero behind."""
    with torch.inference_mode(False):  # else none but inference may write to it
        return torch.zeros(1, dtype=torch.int32, device="cpu")


def _rest(problem: Problem, plan: BasePlan, strides: tuple[Strides, ...], with_lse: bool) -> bytes:
    """The argument block of a launch but for what differs from call to call."""
    values = {size: getattr(problem, size) for size in SIZES}
    for name, (batch, row, head, _) in zip("qkvo", strides, strict=True):
        values |= {f"{name}_batch": batch, f"{name}_row": row, f"{name}_head": head}
    return pack_rest(
        values
        | {
            "left": problem.window_left or 0,  # read only when the plan has the bound
            "right": problem.window_right or 0,
            "lse_rows": problem.seqlen_q if with_lse else 0,
            **sections(problem, plan),
            **problem.factors,
        }
    )


def sections(problem: Problem, plan: BasePlan) -> dict[str, int]:
    """Query heads whose tiles are taken together: keys and values should fit in a sixth of L2."""
    head_bytes = problem.seqlen_k * (plan.head_dim + plan.head_dim_v) * DTYPE_BYTES
    fitting = max(1, CHIPS[plan.arch].l2_bytes // 6 // head_bytes) * problem.group_size
    tiles = -(-problem.seqlen_q // plan.cta_rows)
    return section_sizes(plan, problem.heads_q * problem.batch, tiles, fitting)


def section_sizes(plan: BasePlan, heads: int, tiles: int, fitting: int) -> dict[str, int]:
    """Heads of `tiles` each are taken `fitting` at a time, all heads of a section side by side.

    Where tiles differ in length the last section has at least two tiles per SM all the same: with
    fewer the grid ends unevenly, which cost up to 9 % on an H200 (causal forward, head dim 256, 8k
    keys), far more than the misses in L2 do. Where CTAs take what falls to them, every section
    must be even, and has a multiple of `fitting` heads, which keeps those that share keys together.
    """
    least = -(-2 * CHIPS[plan.arch].sms // max(1, tiles)) if plan.longest_first else 1
    if plan.longest_first and not plan.on_demand:
        fitting = least = -(-least // fitting) * fitting
    section = min(fitting, heads)
    return {"section": section, "last_section": heads - max(0, heads - least) // section * section}


def labels(plan: BasePlan) -> Labels:
    """Names of warps and barriers for the emulator's reports, from the plan's table of edges."""
    warps = [name for name, role in plan.roles.items() for _ in range(role.warps)]
    smem, mbarriers = plan.smem(), {}
    for edge in plan.edges():
        for stage in range(edge.stages):
            mbarriers[smem.full[edge.name] + MBARRIER_BYTES * stage] = BarrierLabel(
                edge.name, stage, (edge.producer,), (edge.consumer,)
            )
            if edge.has_release:
                mbarriers[smem.empty[edge.name] + MBARRIER_BYTES * stage] = BarrierLabel(
                    f"{edge.name} released", stage, (edge.consumer,), (edge.producer,)
                )
    named = {
        barrier.id + i: BarrierLabel(barrier.name, i, (barrier.producer,), (barrier.consumer,))
        for barrier, count in plan.named_barriers().items()
        for i in range(count)
    }
    return Labels(tuple(warps), mbarriers, named)
