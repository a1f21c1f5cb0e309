"""Processes that climb: one that is lost or dies takes nothing along but its own kernel."""

import pytest

from fa4.variants import Variant
from fa4.verify import ladder
from fa4.verify.ladder import Effort
from fa4.verify.workers import DIED, climb_all
from tests.verify import climbers

LOST, DEAD, FINE = "causal", "window", "full"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(ladder, "climb", climbers.climb)


def climbed(masks, jobs):
    """(mask, outcomes) as they come, of different kernels with these masks."""
    kernels = [Variant("sm_100a", (64, 64), mask, "bfloat16", False, n) for n, mask in masks]
    return [(v.mask, found) for v, found in climb_all(kernels, ("emulated",), Effort(), jobs)]


def test_a_lost_gpu_ends_its_process_and_the_others_go_on():
    found = climbed(enumerate([LOST, *[FINE] * 5]), jobs=2)
    assert sorted(mask for mask, _ in found) == [LOST, *[FINE] * 5]
    (lost,) = [outcomes["emulated"].runs for mask, outcomes in found if mask == LOST]
    others = {outcomes["emulated"].runs for mask, outcomes in found if mask == FINE}
    assert len(others) == 1
    assert lost not in others


def test_no_kernel_climbs_without_a_process():
    assert [mask for mask, _ in climbed(enumerate([LOST] * 5), jobs=2)] == [LOST, LOST]
    assert [mask for mask, _ in climbed(enumerate([FINE, LOST, FINE]), jobs=1)] == [FINE, LOST]


def test_a_process_that_dies_is_an_outcome():
    found = climbed(enumerate([DEAD, FINE, FINE]), jobs=2)
    assert sorted(mask for mask, _ in found) == [FINE, FINE, DEAD]
    (dead,) = [outcomes[DIED] for mask, outcomes in found if mask == DEAD]
    assert dead.lost
    assert "terminated abruptly" in dead.failure
