"""The forward matrix: the compiled kernel in the emulator against the float32 oracle.

`make test` draws eight cases of each compiled kernel, `make test-full` runs all.
"""

import pytest
import torch

import fa4
from fa4 import reference
from fa4.problem import Problem, default_scale
from tests.matrix.cases import Case, forward_matrix


def as_problem(case: Case) -> Problem:
    left, right = case.options.get("window_size", (None, None))
    return Problem(
        batch=case.batch,
        seqlen_q=case.lengths[0],
        seqlen_k=case.lengths[1],
        heads_q=case.heads[0],
        heads_kv=case.heads[1],
        head_dim=case.head_dims[0],
        head_dim_v=case.head_dims[1],
        dtype=case.dtype,
        causal=case.options.get("causal", False),
        window_left=left,
        window_right=right,
        softcap=case.options.get("softcap", 0.0),
        scale=default_scale(case.head_dims[0]),
    )


CASES = [
    pytest.param(case, id=str(case), marks=() if short else pytest.mark.slow)
    for case, short in forward_matrix()
]


@pytest.mark.parametrize("case", CASES)
def test_forward_agrees_with_float32(case):
    inputs = case.inputs()
    out, lse = fa4.flash_attn_func(*inputs, **case.options, return_lse=True)
    agreement = reference.compare(as_problem(case), inputs, out, lse)
    assert agreement.ok, agreement
    unseen = lse == -torch.inf
    assert torch.all(out.transpose(1, 2)[unseen] == 0)
