"""The list of variants has every kernel that there is, once."""

import contextlib
import itertools

import pytest

from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.problem import DTYPES, MAX_HEAD_DIM, example_problem
from fa4.variants import HEAD_DIMS, MASKS, variants


def problems(arch):
    """One of every kind that there could be a kernel for."""
    dims = itertools.product(range(8, MAX_HEAD_DIM + 1, 8), repeat=2)
    bounds = [(None, None), (None, 0), (None, 9), (9, None), (9, 9), (0, 0)]
    kinds = itertools.product(DTYPES, bounds, (0.0, 0.1, 30.0), (False, True))
    few = [(64, 64), (8, 40), (96, 128), (192, 128), (128, 64)]
    for each in dims:
        yield example_problem(*each)
    for each, (dtype, (left, right), softcap, deterministic) in itertools.product(few, kinds):
        options = {"window_left": left, "window_right": right, "deterministic": deterministic}
        yield example_problem(*each, dtype=dtype, softcap=softcap, **options, seqlen_q=50)


@pytest.mark.parametrize("arch", HEAD_DIMS)
@pytest.mark.parametrize(("planned", "backward"), [(plan_forward, False), (plan_backward, True)])
def test_every_plan_that_a_problem_leads_to_is_a_variant(arch, planned, backward):
    known, found = {variant.plan for variant in variants(arch, backward)}, set()
    for problem in problems(arch):
        with contextlib.suppress(ValueError):  # head dims without a kernel
            found.add(planned(problem, arch))
    assert found <= known
    assert {(p.head_dim, p.head_dim_v) for p in found} == set(HEAD_DIMS[arch])


def test_every_compiled_kernel_has_one_variant():
    for arch, dims in HEAD_DIMS.items():
        forward, backward = variants(arch), variants(arch, backward=True)
        kinds = len(dims) * len(MASKS) * len(DTYPES) * 2
        assert len({variant.plan for variant in backward}) == len(backward) == 2 * kinds
        assert len({variant.plan for variant in forward}) == len(forward)
        assert len(forward) == kinds if arch != "sm_90a" else len(forward) > kinds
        assert all(variant.plan.arch == variant.arch for variant in forward + backward)
        assert len(set(map(str, forward + backward))) == len(forward + backward)
