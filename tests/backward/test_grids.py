"""Grids of a backward pass whose sum of dQ has more elements than 32 bits count; nothing runs."""

from unittest import mock

import pytest
import torch

from fa4 import launch_backward
from fa4.emulator import session
from fa4.emulator.sessions import Session
from fa4.plan_backward import plan_backward
from fa4.problem import example_problem


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("batch", [32, 128])  # 2^30 and 2^32 floats
def test_every_block_of_rows_has_a_cta(arch: str, batch: int) -> None:
    problem = example_problem(128, batch=batch, seqlen_q=8192, seqlen_k=128, heads_q=32, heads_kv=1)
    plan, grids = plan_backward(problem, arch), []
    empty = torch.zeros(1, dtype=torch.bfloat16).as_strided((1,) * 4, (1 << 20, 128, 128, 1))
    tensors = dict.fromkeys(("q", "k", "v", "o", "do", "dq", "dk", "dv"), empty)
    tensors["lse"] = torch.zeros(1)
    block = launch_backward._block(problem, plan, tensors, torch.zeros(4))

    def note(_session: Session, raw: object, _ranges: object) -> None:
        grids.append(raw.grid)

    with mock.patch.object(Session, "launch", note), session(arch=arch):
        launch_backward._launch_in_session(plan, block, tensors)
    blocks = batch * 32 * 8192 // plan.m_tile
    assert [grid[0] for grid in grids] == [blocks, batch, blocks]
