"""The forward matrix: the compiled kernels in the emulator against the float32 oracle.

`make test` runs 320 cases of Blackwell and 224 of Hopper, `make test-full` all 6144.
"""

import pytest
import torch

import fa4
from fa4 import reference
from tests.asked import problem_of
from tests.matrix.cases import forward_matrix

CASES = [
    pytest.param(case, id=str(case), marks=() if short else pytest.mark.slow)
    for case, short in forward_matrix()
]


@pytest.mark.parametrize("case", CASES)
def test_forward_agrees_with_float32(case, monkeypatch):
    monkeypatch.setenv("FA4_EMULATE_ARCH", case.arch)
    inputs = case.inputs()
    out, lse = fa4.flash_attn_func(*inputs, **case.options, return_lse=True)
    agreement = reference.compare(problem_of(*inputs, **case.options), inputs, out, lse)
    assert agreement.ok, agreement
    unseen = lse == -torch.inf
    assert torch.all(out.transpose(1, 2)[unseen] == 0)
