"""A backward pass whose sum of dQ has more elements than 32 bits count; nothing of it runs."""

from unittest import mock

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass import Float32, Int64
from cutlass.cute.runtime import from_dlpack

from fa4 import launch_backward
from fa4.emulator import session
from fa4.emulator.sessions import Session
from fa4.plan_backward import plan_backward
from fa4.problem import MAX_LENGTH, example_problem
from fa4.tiles.dq_sum import dq_layout


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("batch", [32, 128])  # 2^30 and 2^32 floats
def test_every_block_of_rows_has_a_cta(arch: str, batch: int) -> None:
    problem = example_problem(128, batch=batch, seqlen_q=8192, seqlen_k=128, heads_q=32, heads_kv=1)
    plan, grids = plan_backward(problem, arch), []
    empty = torch.zeros(1, dtype=torch.bfloat16).as_strided((1,) * 4, (1 << 20, 128, 128, 1))
    lse, small = torch.zeros(1), torch.zeros(4)
    tensors = launch_backward.BackwardTensors(*[empty] * 5, lse, None, *[empty] * 3)

    def note(_session: Session, raw: object, _ranges: object) -> None:
        grids.append(raw.grid)

    with (
        mock.patch.object(Session, "launch", note),
        mock.patch.object(launch_backward._Work, "workspace", return_value=small),
        session(arch=arch),
    ):
        launch_backward.prepare(problem, plan, tensors.strides(), lse.device)(tensors)
    blocks = batch * 32 * 8192 // plan.m_tile
    assert [grid[0] for grid in grids] == [blocks, batch, blocks]


@cute.kernel
def offset_kernel(x: cute.Tensor, y: cute.Tensor, floats: cutlass.Constexpr[int]) -> None:
    base = cute.make_ptr(Float32, Int64(0), cute.AddressSpace.gmem, assumed_align=16)
    dq = cute.make_tensor(base, dq_layout(floats, (x[0], x[1], x[2])))
    y[0] = dq[None, x[3], x[4], x[5]].iterator.toint()


@cute.jit
def offset_host(x: cute.Tensor, y: cute.Tensor, floats: cutlass.Constexpr[int]) -> None:
    offset_kernel(x, y, floats).launch(grid=[1, 1, 1], block=[1, 1, 1])


def test_the_last_block_of_the_longest_sequence_has_its_place() -> None:
    floats, blocks, heads, batch = 64 * 256, MAX_LENGTH // 64, 3, 2
    where = (blocks - 1, heads - 1, batch - 1)
    x = torch.tensor([blocks, heads, batch, *where], dtype=torch.int32)
    y = torch.zeros(1, dtype=torch.int64)
    with session():
        cute.compile(offset_host, from_dlpack(x), from_dlpack(y), floats)(
            from_dlpack(x), from_dlpack(y)
        )
    assert y.item() == (blocks * heads * batch - 1) * floats * Float32.width // 8
