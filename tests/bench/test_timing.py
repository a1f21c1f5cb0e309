"""Order and arithmetic of the interleaved timing, on a clock that only fake kernels move."""

from collections import Counter
from contextlib import contextmanager
from itertools import pairwise, permutations

import pytest

from bench.hopper.timing import Effort, Work, balanced_orders, estimate_ms, interleave
from tests.bench.fakes import HOST_US, FakeDevice


def works(device, calls=2, **ms):
    """Works of `calls` calls, each one launch."""
    return {
        name: Work(lambda name=name, time=time: device.launch(name, time), calls, calls)
        for name, time in ms.items()
    }


@pytest.mark.parametrize("names", ["a", "ab", "abc", "abcd", "abcde"])
def test_each_stands_everywhere_and_behind_each_other_equally_often(names):
    """Then what one leaves behind, a cool card or a full L2, is for the good of all alike."""
    orders = balanced_orders(list(names))
    places = Counter((place, name) for order in orders for place, name in enumerate(order))
    neighbours = Counter(pair for order in orders for pair in pairwise(order))
    assert len(places) == len(names) ** 2
    assert len(set(places.values())) == 1
    assert set(neighbours) == set(permutations(names, 2))
    assert len(set(neighbours.values())) <= 1


def test_every_round_runs_all_in_the_next_order():
    device = FakeDevice()
    interleave(device, works(device, calls=2, a=1.0, b=2.0, c=3.0), 7, wait_between=False)
    orders = ["".join(order) for order in balanced_orders(["a", "b", "c"])]
    assert "".join(device.log[::2]) == "".join([*orders, orders[0]])
    assert device.log[::2] == device.log[1::2]


def test_times_are_per_launch_and_per_call():
    device = FakeDevice()
    samples = interleave(device, works(device, calls=4, a=1.0, b=2.5), 5, wait_between=False)
    assert len(samples["a"].device_ms) == 5
    assert samples["b"].device_ms == pytest.approx([2.5] * 5)
    assert samples["b"].us == pytest.approx(HOST_US)
    graph = {"g": Work(lambda: device.launch("g", 1.5, launches=10), 1, 10)}
    assert interleave(device, graph, 2, wait_between=False)["g"].ms == pytest.approx(1.5, rel=1e-3)


def test_a_drift_hits_all_alike():
    """Kernels that slow down over the run keep their ratio of medians."""
    device = FakeDevice()

    def slowing(base):
        return lambda: device.launch("", base * (1 + len(device.log) / 1000))

    drifting = {name: Work(slowing(base), 1, 1) for name, base in (("a", 1.0), ("b", 2.0))}
    samples = interleave(device, drifting, 101, wait_between=False)
    assert samples["b"].ms / samples["a"].ms == pytest.approx(2.0, rel=2e-3)


def test_waiting_empties_the_queue_before_each_sample():
    device = FakeDevice()
    # the host is slower than the kernel: with an empty queue the device waits for the host
    samples = interleave(device, works(device, calls=5, a=0.001), 3, wait_between=True)
    assert samples["a"].ms == pytest.approx(HOST_US / 1e3, rel=0.2)


def test_a_sample_runs_in_its_context():
    device, entered = FakeDevice(), []

    @contextmanager
    def context():
        entered.append(len(device.log))
        yield
        entered.append(len(device.log))

    work = Work(lambda: device.launch("a", 1.0), 2, 2, context)
    interleave(device, {"a": work}, 2, wait_between=False)
    assert entered == [0, 2, 2, 4]


@pytest.mark.parametrize(("ms", "launches", "calls"), [(50, 2, 5), (1, 10, 15), (0.001, 100, 50)])
def test_effort_follows_the_kernel(ms, launches, calls):
    effort = Effort()
    assert (effort.launches(ms), effort.eager_calls(ms)) == (launches, calls)


@pytest.mark.parametrize(("n", "rounds"), [(0, 8), (1, 8), (2, 8), (3, 12), (4, 8), (5, 10)])
def test_rounds_hold_every_order_equally_often(n, rounds):
    assert Effort().balanced_rounds(n) == rounds
    assert Effort(rounds=1).balanced_rounds(n) == max(len(balanced_orders("abcdef"[:n])), 1)


def test_estimate():
    device = FakeDevice()
    assert estimate_ms(device, lambda: device.launch("a", 3.0)) == pytest.approx(3.0, rel=0.01)
