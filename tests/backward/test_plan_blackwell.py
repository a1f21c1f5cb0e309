"""Plans of the backward pass on Blackwell: pure Python rules."""

import pytest

from fa4.launch import labels
from fa4.pipeline.tmem import COLUMNS, backward_tmem_map
from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.plan_backward_blackwell import DQ_CHUNK, TUNED, BlackwellBackwardPlan
from fa4.problem import example_problem
from tests.backward.plans import names_roles_and_has_labels, refuses

ALL_DIMS = [*((d, dv) for d in range(8, 129, 8) for dv in (8, 64, 72, 128)), (192, 128)]


@pytest.fixture(autouse=True)
def arch() -> None:
    """Nothing is emulated here."""


def plan(
    dims: tuple[int, int] = (128, 128), arch: str = "sm_100a", **options: object
) -> BlackwellBackwardPlan:
    return plan_backward(example_problem(*dims, **options), arch)


@pytest.mark.parametrize("dims", ALL_DIMS, ids=str)
def test_every_head_dim_of_the_forward_has_a_plan_that_fits(dims: tuple[int, int]) -> None:
    found, forward = plan(dims), plan_forward(example_problem(*dims), "sm_100a")
    found.check()
    assert (found.head_dim, found.head_dim_v) == (forward.head_dim, forward.head_dim_v)
    assert found.head_dim // DQ_CHUNK % found.dq_stages == 0


def test_what_the_forward_refuses_is_refused() -> None:
    for dims in ((136, 128), (128, 136), (192, 192), (192, 64)):
        with pytest.raises(ValueError, match="supports both at most 128"):
            plan(dims)


def test_equal_kinds_of_problems_share_a_plan() -> None:
    assert plan(seqlen_q=5, seqlen_k=7, heads_q=4) is plan(seqlen_q=4096)
    assert plan(causal=True) != plan()
    assert plan(arch="sm_103a").arch == "sm_103a"


@pytest.mark.parametrize("dims", sorted(TUNED), ids=str)
def test_tiles_in_tensor_memory_overlap_only_as_they_may(dims: tuple[int, int]) -> None:
    d, dv = dims
    columns = plan(dims).tmem()
    tiles = [(columns.dv, dv), (columns.dk, d), (columns.dp, 128)]
    if columns.scores_ahead:
        tiles.append((columns.s, 128))
    else:
        assert columns.s == columns.dp
    taken = [c for first, width in tiles for c in range(first, first + width)]
    assert len(set(taken)) == len(taken)
    assert max(taken) < columns.allocated <= COLUMNS
    others = [(columns.dv, dv), (columns.dk, d)]
    dq = set(range(columns.dq, columns.dq + d))
    assert not dq & {c for first, width in others for c in range(first, first + width)}
    assert columns.dq == columns.dp
    assert columns.scores_ahead == (dims != (192, 128))


def test_too_many_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="need 640 of 512 tensor memory columns"):
        backward_tmem_map(128, 256, 128)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q_stages": 1}, "q_stages=1, but S of the next block"),
        ({"do_stages": 2}, "of shared memory"),
        ({"registers": (140, 152, 72)}, "multiples of 8"),
        ({"registers": (152, 152, 72)}, "Give some role fewer"),
        ({"registers": (152, 120, 72)}, "120 registers for reduce.*inc starts from 128; at least"),
        ({"registers": (120, 152, 72)}, "120 registers for compute"),
    ],
    ids=str,
)
def test_tunings_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    refuses(plan(), changes, message)


def test_edges_name_roles_and_have_labels() -> None:
    found = plan()
    text = names_roles_and_has_labels(found, {"commit", "warps", "never"})
    assert "S at 0, dP at 128, dV at 256, dK at 384" in text
    assert labels(found).named_barriers == {}


def test_counts_are_those_of_all_warps_of_a_role() -> None:
    found = plan()
    counts = {e.name: e.arrive_count(found.warps_per_stage()) for e in found.edges()}
    assert counts["p_written"] == counts["ds_written"] == counts["gradients_read"] == 8
    assert counts["dq_read"] == 4
    assert counts["s_computed"] == counts["q_loaded"] == 1
