"""Rules of `fa4.problem`: what is refused, with which words, and which masks are the same."""

import itertools
import math
import re
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch

from fa4.problem import Problem, check_head_dims, default_scale

BASE = {
    "batch": 2,
    "seqlen_q": 256,
    "seqlen_k": 384,
    "heads_q": 4,
    "heads_kv": 2,
    "head_dim": 128,
    "head_dim_v": 128,
    "dtype": "bfloat16",
    "causal": False,
    "window_left": None,
    "window_right": None,
    "softcap": 0.0,
    "scale": default_scale(128),
}


def make(**changes):
    return Problem(**{**BASE, **changes})


@pytest.mark.parametrize("window", [(None, None), (-1, -1), (-1, 0), (None, 0), (-1, 5), (-7, 3)])
def test_fault_01_causal_with_an_unbounded_left_is_plain_causal(window):
    problem = make(causal=True, window_left=window[0], window_right=window[1])
    assert problem == make(causal=True)
    assert (problem.mask, problem.window_left, problem.window_right) == ("causal", None, 0)


@pytest.mark.parametrize("right", [None, -1, 0, 9])
def test_fault_01_causal_with_a_left_bound_is_a_window_that_ends_on_the_diagonal(right):
    problem = make(causal=True, window_left=7, window_right=right)
    assert problem == make(window_left=7, window_right=0)
    assert (problem.mask, problem.window_left, problem.window_right) == ("window", 7, 0)


def test_a_right_bound_of_zero_alone_is_causal():
    assert make(window_left=-1, window_right=0) == make(causal=True)


def test_negative_bounds_are_unbounded():
    assert make(window_left=-1, window_right=-3) == make()
    assert make(window_left=-1, window_right=3) == make(window_right=3)
    assert make().mask == "full"


def visible(problem, i, j):
    offset = j - (i + problem.diagonal_shift)
    left = problem.window_left is None or offset >= -problem.window_left
    return left and (problem.window_right is None or offset <= problem.window_right)


def test_clamping_huge_windows_keeps_every_mask():
    sizes = (1, 2, 5)
    bounds = (0, 1, 2, 4, 5, 2**40)
    for seqlen_q, seqlen_k, left, right in itertools.product(sizes, sizes, bounds, bounds):
        problem = make(seqlen_q=seqlen_q, seqlen_k=seqlen_k, window_left=left, window_right=right)
        assert max(problem.window_left, problem.window_right) < 2**31
        for i, j in itertools.product(range(seqlen_q), range(seqlen_k)):
            offset = j - (i + seqlen_k - seqlen_q)
            assert visible(problem, i, j) == (-left <= offset <= right)


@pytest.mark.parametrize(
    "changes",
    [{"causal": True}, {"window_left": 3}, {"window_right": 2**40, "seqlen_q": 1}, {"softcap": 5}],
)
def test_normalising_twice_changes_nothing(changes):
    problem = make(**changes)
    assert Problem(**asdict(problem)) == problem
    assert replace(problem) == problem


def test_derived_values():
    problem = make()
    assert problem.group_size == 2
    assert problem.diagonal_shift == 128
    assert not problem.empty
    assert all(make(**{name: 0}).empty for name in ("batch", "seqlen_q", "seqlen_k"))
    assert math.isclose(default_scale(64), 0.125)


@pytest.mark.parametrize(
    ("head_dim", "head_dim_v"),
    [(8, 8), (64, 64), (72, 80), (128, 64), (64, 128), (192, 128), (256, 256)],
)
def test_supported_head_dims(head_dim, head_dim_v):
    check_head_dims(head_dim, head_dim_v)


@pytest.mark.parametrize(
    ("head_dim", "head_dim_v"), [(0, 64), (68, 64), (64, 4), (264, 264), (128, 512)]
)
def test_fault_28_unsupported_head_dims_name_value_and_rule(head_dim, head_dim_v):
    with pytest.raises(ValueError, match=r"head_dim.*\d+.*(multiple of 8|at most 256)"):
        make(head_dim=head_dim, head_dim_v=head_dim_v)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"heads_q": 3}, ValueError, "heads_q=3 is no multiple of heads_kv=2"),
        ({"heads_q": 0}, ValueError, "heads_q=0"),
        ({"heads_kv": -1}, ValueError, "heads_kv=-1"),
        ({"batch": -1}, ValueError, "batch is -1"),
        ({"seqlen_k": 2**30 + 1}, ValueError, "seqlen_k is 1073741825"),
        ({"batch": 2**20, "seqlen_q": 2**10}, ValueError, "query rows"),
        ({"seqlen_q": 2.0}, TypeError, "seqlen_q is 2.0"),
        ({"dtype": "float32"}, TypeError, "'float32'; supported: bfloat16, float16"),
        ({"causal": None}, TypeError, "causal is None"),
        ({"window_left": 1.5}, TypeError, "window_left is 1.5"),
        ({"softcap": -1.0}, ValueError, "softcap is -1.0"),
        ({"softcap": math.nan}, ValueError, "softcap is nan"),
        ({"scale": -0.1}, ValueError, "scale is -0.1"),
        ({"scale": 0}, ValueError, "scale is 0"),
        ({"scale": math.inf}, ValueError, "scale is inf"),
        ({"scale": 10**400}, ValueError, "scale is inf"),
        ({"scale": "auto"}, TypeError, "scale is 'auto'"),
    ],
)
def test_fault_28_bad_values_are_refused_by_name(changes, error, words):
    with pytest.raises(error) as caught:
        make(**changes)
    assert words in str(caught.value)


LOW, HIGH = 2.0**-126, 2.0**126


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale": 1e39}, "scale is 1e+39; scale must lie in"),
        ({"scale": 3e38}, "Multiply q by a part of it"),  # times log2 e it is infinite
        ({"scale": 1e-50}, "scale is 1e-50; scale must lie in 1.18e-38 ... 8.51e+37"),
        ({"scale": math.nextafter(HIGH, math.inf)}, "scale must lie in"),
        ({"scale": math.nextafter(LOW, 0.0)}, "scale must lie in"),
        ({"softcap": 1e39}, "softcap is 1e+39; softcap must lie in"),
        ({"softcap": 1e-60}, "softcap must lie in"),
        ({"softcap": 1e-60}, "0.0 is off"),
        ({"scale": 1e20, "softcap": 1e-20}, "scale is 1e+20 and softcap is 1e-20; scale / softcap"),
        ({"scale": 1e-20, "softcap": 1e20}, "scale / softcap must lie in"),
    ],
)
def test_factors_that_float32_cannot_hold_are_refused(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make(**changes)


@pytest.mark.parametrize(
    ("scale", "softcap"), [(LOW, 0.0), (HIGH, 0.0), (1.0, LOW), (1.0, HIGH), (LOW, 1.0)]
)
def test_the_largest_and_smallest_factors_are_normal_in_float32(scale, softcap):
    problem, normal = make(scale=scale, softcap=softcap), torch.finfo(torch.float32)
    used = problem.factors if softcap else {"scale": scale, "log2": problem.factors["scale_log2"]}
    held = torch.tensor([*used.values(), problem.scale], dtype=torch.float32)
    if softcap:  # see fa4.numerics.softcap
        held = torch.cat([held, 2 * math.log2(math.e) * held[-2:-1]])
    assert ((held >= normal.tiny) & (held <= normal.max)).all()


def test_fault_10_a_batch_beyond_a_grid_dimension_is_accepted():
    assert make(batch=65536 * 4, seqlen_q=1, seqlen_k=1).batch == 262144


def test_fault_11_four_million_keys_are_accepted():
    assert make(seqlen_q=2048, seqlen_k=4194304).seqlen_k == 4194304


def test_importing_the_rules_imports_neither_torch_nor_the_compiler():
    code = "import sys, fa4.problem; print(sorted({'torch', 'cutlass', 'cuda'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
