"""The generator of random problems: reproducible, valid, and reaching what it should."""

from collections import Counter

import pytest
import torch

from bench.hopper.layouts import LAYOUTS
from bench.hopper.problems import CONTENTS, HEAD_DIMS, MAX_ELEMENTS, MAX_SCORES, UNEQUAL, draw
from fa4.plan import plan_forward

TRIALS = [draw(seed) for seed in range(2000)]


def test_a_seed_names_one_problem():
    assert [draw(seed) for seed in range(50)] == TRIALS[:50]
    first, again = TRIALS[3].inputs("cpu"), TRIALS[3].inputs("cpu")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert len(set(map(str, TRIALS))) > 1990


def test_everything_is_drawn():
    dims = {t.head_dims for t in TRIALS}
    assert {*HEAD_DIMS, *UNEQUAL, (8, 8), (40, 40), (120, 120)} <= dims
    assert {t.layout for t in TRIALS} == set(LAYOUTS)
    assert {t.contents for t in TRIALS} == set(CONTENTS)
    assert {t.dtype for t in TRIALS} == {"bfloat16", "float16"}
    options = Counter(name for t in TRIALS for name in t.options)
    assert min(options[n] for n in ("causal", "window_size", "softcap", "softmax_scale")) > 150
    assert sum(t.heads[0] > t.heads[1] for t in TRIALS) > 500
    assert sum(t.lengths[0] != t.lengths[1] for t in TRIALS) > 500
    assert sum(0 in t.lengths for t in TRIALS) > 10
    assert sum(max(t.lengths) > 2048 for t in TRIALS) > 100
    windows = [t.options["window_size"] for t in TRIALS if "window_size" in t.options]
    assert {(left or 0) < 0 for left, _ in windows} == {True, False}
    assert any(right is None for _, right in windows)
    assert any(right == 0 for _, right in windows)


def test_the_reference_can_hold_every_problem():
    for t in TRIALS:
        assert t.batch * t.heads[0] * t.lengths[0] * t.lengths[1] <= MAX_SCORES
        assert t.batch * t.heads[0] * t.head_dims[0] * max(t.lengths) <= MAX_ELEMENTS


def test_few_kernels_serve_many_problems():
    """Compiling takes seconds."""
    plans = {plan_forward(trial.problem(), "sm_90a") for trial in TRIALS}
    assert len(plans) <= 128


def test_head_dims_can_be_chosen():
    chosen = ((64, 64), (192, 128))
    assert {draw(seed, chosen).head_dims for seed in range(50)} == set(chosen)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts_keep_values(layout):
    shapes = ((2, 5, 4, 16), (2, 5, 2, 16), (2, 5, 2, 8))
    values = [torch.randn(shape) for shape in shapes]
    laid = LAYOUTS[layout](*values)
    for value, tensor in zip(values, laid, strict=True):
        assert tensor.shape == value.shape
        assert tensor.stride(3) == 1
        if layout == "shared_batch" and tensor is not laid[0]:
            value = value[:1].expand_as(value)
        if layout == "shared_heads" and tensor is not laid[0]:
            value = value[:, :, :1].expand_as(value)
        assert torch.equal(tensor, value)


def test_layouts_differ_in_memory():
    shapes = ((2, 5, 4, 16), (2, 5, 2, 16), (2, 5, 2, 8))
    values = [torch.randn(shape) for shape in shapes]
    strides = {name: LAYOUTS[name](*values)[1].stride() for name in LAYOUTS}
    assert len(set(strides.values())) == len(LAYOUTS)
    q, _, v = LAYOUTS["fused"](*values)
    assert q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    q = LAYOUTS["sliced"](*values)[0]
    assert q.as_strided((1,), (1,), q.storage_offset() - 1).isnan()
    assert q.storage_offset() * 2 % 16 == 0
    assert LAYOUTS["unaligned"](*values)[0].storage_offset() % 2
