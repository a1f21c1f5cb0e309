"""Plans of the backward pass on Hopper: pure Python rules."""

import pytest

from fa4.launch import labels
from fa4.pipeline.storage import TILE_ALIGN
from fa4.plan_backward import plan_backward
from fa4.plan_hopper_backward import TUNED, TUNED_SOFTCAP, HopperBackwardPlan
from fa4.problem import example_problem
from tests.backward.plans import names_roles_and_has_labels, refuses

ALL_DIMS = [(d, dv) for d in range(8, 257, 8) for dv in (8, 64, 128, 192, 256)]


@pytest.fixture(autouse=True)
def arch() -> None:
    """Nothing is emulated here."""


def plan(dims: tuple[int, int] = (128, 128), **options: object) -> HopperBackwardPlan:
    return plan_backward(example_problem(*dims, **options), "sm_90a")


@pytest.mark.parametrize("dims", ALL_DIMS, ids=str)
def test_every_head_dim_has_a_plan_that_fits(dims: tuple[int, int]) -> None:
    found = plan(dims)
    found.check()
    assert found.head_dim >= dims[0]
    assert found.head_dim_v >= dims[1]


def test_equal_kinds_of_problems_share_a_plan() -> None:
    assert plan(seqlen_q=5, seqlen_k=7, heads_q=4) is plan(seqlen_q=4096)
    assert plan(causal=True) != plan()


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="arch='sm_80' has no backward kernel"):
        plan_backward(example_problem(128), "sm_80")


@pytest.mark.parametrize("dims", sorted(TUNED), ids=str)
def test_tiles_cover_dq_and_the_key_block(dims: tuple[int, int]) -> None:
    found = plan(dims)
    rows, columns = found.dq_grid
    assert (rows * found.dq_tile[0], columns * found.dq_tile[1]) == (
        found.m_tile,
        found.head_dim,
    )
    assert found.dk_tile[1] * found.parts == found.head_dim
    assert found.scores_tile[1] * found.parts == found.m_tile


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m_block": 80}, "is not made of tiles"),
        ({"dq_columns": 128}, "1 tiles of dQ for 2 warpgroups"),
        ({"stages": 1, "scores_ahead": True}, "scores_ahead needs the next Q"),
        ({"scores_ahead": True}, "scores_ahead is for columns_split"),
        ({"stages": 6}, "of shared memory"),
        ({"registers": (244, 24)}, "multiples of 8"),
        ({"registers": (256, 40)}, "Give some role fewer"),
        ({"registers": (160, 40)}, "160 registers for compute.*inc starts from 168; at least"),
        ({"registers": (96, 176)}, "176 registers for load.*dec starts from 168; at most"),
    ],
    ids=str,
)
def test_tunings_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    refuses(plan(), changes, message)


@pytest.mark.parametrize("softcap", [0.0, 20.0])
@pytest.mark.parametrize("dims", sorted(TUNED), ids=str)
def test_gradients_leave_through_places_of_their_own(dims: tuple[int, int], softcap: float) -> None:
    found = plan(dims, softcap=softcap)
    assert found.tuning is (TUNED_SOFTCAP if softcap else TUNED)[dims]
    smem = found.smem()
    ends = [*sorted(smem.tiles.values())[1:], smem.nbytes]
    end_of = dict(zip(sorted(smem.tiles, key=smem.tiles.get), ends, strict=True))
    spans = []
    for gradient, columns in zip(("dK", "dV"), dims, strict=True):
        buffer, offset = found.gradient_places[gradient]
        assert buffer in ("sdS", "sdQ")  # the others are loaded meanwhile, or read by other warps
        start = smem.tiles[buffer] + offset
        spans.append((start, start + found.n_block * columns * 2))
        assert start % TILE_ALIGN == 0
        assert spans[-1][1] <= end_of[buffer]
    (_, first_end), (second, _) = sorted(spans)
    assert first_end <= second


def test_gradients_that_do_not_fit_are_refused() -> None:
    changes = {"warpgroups": 3, "dq_columns": 32, "registers": (160, 32)}
    message = "dK of 192 keys ends at byte 36864 of sdQ, which has 24576.*fewer warpgroups"
    refuses(plan((96, 96)), changes, message)


def test_edges_name_roles_and_have_labels() -> None:
    names_roles_and_has_labels(plan(), {"warps", "never"})
    named = labels(plan()).named_barriers
    assert [str(label) for label in named.values()] == ["gradients_written[0]"]


def test_counts_are_those_of_all_compute_warps() -> None:
    found = plan()
    counts = {e.name: e.arrive_count(found.warps_per_stage()) for e in found.edges()}
    assert counts["ds_written"] == counts["dq_written"] == 8
    assert counts["q_loaded"] == 1
