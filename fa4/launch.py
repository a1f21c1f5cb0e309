"""Torch tensors -> arguments of the compiled host function -> a launch on their device."""

from __future__ import annotations

import ctypes
import math
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, lru_cache

import cuda.bindings.driver as cuda
import torch

from fa4.arguments import SIZES, ForwardArguments
from fa4.compile import compile_forward
from fa4.emulator import BarrierLabel, Labels, current_session, session
from fa4.host import argument_pointer
from fa4.pipeline import barriers
from fa4.pipeline.storage import MBARRIER_BYTES
from fa4.plan_base import CHIPS, DTYPE_BYTES, BasePlan
from fa4.plan_hopper import HopperPlan
from fa4.problem import Problem


def forward(
    problem: Problem,
    plan: BasePlan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Run attention into `out` and `lse`, on the current stream of a CUDA device or emulated.

    Shapes: q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv), out (B, Sq, H, Dv), lse (B, H, Sq)
    float32 and contiguous. Bases and all strides but the last (1) are multiples of 16 bytes.

    Raises ValueError for CUDA tensors inside an emulator session: what is loaded there is bound to
    the emulator for good, and would be launched on device addresses.
    """
    if q.device.type == "cuda" and current_session() is not None:
        raise ValueError(
            f"q is on {q.device} inside fa4.emulator.session(), where kernels run on host memory; "
            "pass CPU tensors, or call outside of the session."
        )
    strides = (q.stride(), k.stride(), v.stride(), out.stride())
    block = ForwardArguments.from_buffer_copy(_template(problem, plan, strides))
    block.q, block.k, block.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    block.o, block.lse = out.data_ptr(), lse.data_ptr()
    if q.device.type == "cuda":
        _launch_native(plan, block, q.device)
    else:
        _launch_emulated(plan, block, {"q": q, "k": k, "v": v, "o": out, "lse": lse})


def _launch_native(plan: BasePlan, block: ForwardArguments, device: torch.device) -> None:
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            _launch_native(plan, block, device)
        return
    kernel = _native_kernel(plan, device)
    # the raw handle costs a tenth of torch.cuda.current_stream
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    block.num_ctas = kernel.num_sms
    if isinstance(plan, HopperPlan):
        block.tile_counter = _counter(device, stream).data_ptr()
    kernel(block, stream)


class _Call(ctypes.Structure):
    """What the host function's two arguments point at."""

    _fields_ = (("block", ctypes.c_void_p), ("stream", ctypes.c_void_p))


@dataclass(frozen=True)
class _NativeKernel:
    """The host function, called without the DSL's conversion of arguments: half of the overhead."""

    executor: object
    num_sms: int

    def __call__(self, block: ForwardArguments, stream: int) -> None:
        call = _Call(ctypes.addressof(block), stream)
        first = ctypes.addressof(call)
        self.executor.run_compiled_program([first, first + ctypes.sizeof(ctypes.c_void_p)])


@cache
def _native_kernel(plan: BasePlan, device: torch.device) -> _NativeKernel:
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    return _NativeKernel(compile_forward(plan, emulated=False).to(device.index), num_sms)


def _launch_emulated(
    plan: BasePlan, block: ForwardArguments, tensors: dict[str, torch.Tensor]
) -> None:
    """In the innermost open session, or in one of its own with the default schedule."""
    if isinstance(plan, HopperPlan):
        tensors["tile_counter"] = _counter(tensors["q"].device, 0)
        block.tile_counter = tensors["tile_counter"].data_ptr()
    with ExitStack() as stack:
        here = current_session() or stack.enter_context(session(arch=plan.arch))
        stack.enter_context(here.lend(tensors, labels(plan)))
        block.num_ctas = here.device.num_sms
        compile_forward(plan, emulated=True)(_pointer(block), cuda.CUstream(0))


@lru_cache(maxsize=4096)
def _template(problem: Problem, plan: BasePlan, strides: tuple[tuple[int, ...], ...]) -> bytes:
    """The argument block of a call but for addresses and the size of the grid."""
    block = ForwardArguments()
    for name, (batch, row, head, _) in zip("qkvo", strides, strict=True):
        for axis, stride in (("batch", batch), ("row", row), ("head", head)):
            setattr(block, f"{name}_{axis}", stride)
    for size in SIZES:
        setattr(block, size, getattr(problem, size))
    block.left = problem.window_left or 0  # read only when the plan has the bound
    block.right = problem.window_right or 0
    block.section = heads_per_section(problem, plan)
    # with softcap the kernel's scores are tanh(scale q.k / cap), still to be multiplied by the cap
    cap = problem.softcap or 1.0
    scale = cap if problem.softcap else problem.scale
    block.softmax_scale = scale
    block.scale_log2 = scale * math.log2(math.e)
    block.softcap = problem.scale / cap
    return bytes(block)


@cache
def _counter(device: torch.device, stream: int) -> torch.Tensor:
    """A zero that every launch leaves behind as a zero; one per stream, as launches overlap."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def _pointer(arguments: ForwardArguments) -> object:
    return argument_pointer(ctypes.addressof(arguments))


def heads_per_section(problem: Problem, plan: BasePlan) -> int:
    """Query heads whose tiles are taken together, the longest first.

    Their keys and values should fit in a sixth of L2. Where tiles differ in length a section has at
    least two tiles per SM all the same: with fewer the last one ends unevenly, which cost up to
    9 % on an H200 (causal, head dim 256, 8k keys), far more than the misses in L2 do.
    """
    chip, heads = CHIPS[plan.arch], problem.heads_q * problem.batch
    head_bytes = problem.seqlen_k * (plan.head_dim + plan.head_dim_v) * DTYPE_BYTES
    section = max(1, chip.l2_bytes // 6 // head_bytes) * problem.group_size
    sections = -(-heads // section)
    if plan.longest_first:
        tiles = heads * -(-problem.seqlen_q // plan.cta_rows)
        sections = max(1, min(sections, tiles // (2 * chip.sms)))
    return -(-heads // sections)


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
    drained = BarrierLabel("tmem_drained", 0, ("correction",), ("mma",))
    return Labels(tuple(warps), mbarriers, {barriers.TMEM_DRAINED: drained})
