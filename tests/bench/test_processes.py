"""Records come from all processes; those that die or hang are not waited for."""

import os
import time

import pytest

from bench import processes


def numbers(first, count, put):
    for number in range(first, first + count):
        put(number)


def dying(put):
    put("before")
    time.sleep(0.5)  # it is on its way
    os._exit(1)


def hanging(put):
    put("before")
    time.sleep(600)


def test_records_of_all_processes_come():
    found = list(processes.records(numbers, [(0, 3), (10, 2), (20, 0)]))
    assert sorted(found) == [0, 1, 2, 10, 11]


@pytest.mark.parametrize("work", [dying, hanging])
def test_a_process_that_dies_or_hangs_is_not_waited_for(work, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 8.0)
    begin = time.monotonic()
    assert list(processes.records(work, [()])) == ["before"]
    assert time.monotonic() - begin < 60.0
