"""The kinds of forward kernel that ptxas is held to, and which belong to the short suite."""

from fa4.plan_blackwell import TUNED
from fa4.variants import Variant
from fa4.variants import variants as every_variant


def plan(dims=(128, 128), dtype="bfloat16", mask="full", softcap=False, arch="sm_100a"):
    """The plan of one Blackwell variant; it depends on no length."""
    return Variant(arch, dims, mask, dtype, softcap).plan


def variants():
    """(plan, whether it belongs to the short suite) of every variant.

    The short suite has every head dim that was tuned full and causal; windows, the other dtype and
    the softcap change what a row computes, not the tiles, so head dim 128 stands for all there.
    """
    for variant in every_variant("sm_100a"):
        dims, mask, dtype, softcap = variant.dims, variant.mask, variant.dtype, variant.softcap
        plain = dtype == "bfloat16" and not softcap
        common = plain and mask in ("full", "causal") and dims in TUNED
        square = dims == (128, 128) and (plain or (mask == "causal" and softcap))
        yield variant.plan, common or square
