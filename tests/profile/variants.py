"""Every kind of forward kernel that ptxas is held to."""

import itertools

from fa4.plan import plan_forward
from fa4.problem import example_problem

DIMS = ((64, 64), (96, 96), (128, 128), (192, 128))
DTYPES = ("bfloat16", "float16")
MASKS = {"full": (None, None), "causal": (None, 0), "left": (64, None), "window": (64, 32)}


def plan(dims=(128, 128), dtype="bfloat16", mask="full", softcap=False):
    """The plan of one variant; it depends on no length."""
    left, right = MASKS[mask]
    problem = example_problem(
        *dims,
        dtype=dtype,
        window_left=left,
        window_right=right,
        softcap=1.0 if softcap else 0.0,
    )
    return plan_forward(problem)


def variants():
    """(plan, whether it belongs to the short suite) of every variant.

    The short suite has every head dim full and causal; windows, the other dtype and the softcap
    change what a row computes, not the tiles, so head dim 128 stands for all there.
    """
    for dims, mask, dtype, softcap in itertools.product(DIMS, MASKS, DTYPES, (False, True)):
        plain = dtype == "bfloat16" and not softcap
        common = plain and mask in ("full", "causal")
        square = dims == (128, 128) and (plain or (mask == "causal" and softcap))
        yield plan(dims, dtype, mask, softcap), common or square
