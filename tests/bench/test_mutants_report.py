"""The report of `python -m bench mutants`: its table, its survivors, its exit code."""

import pytest

from bench.mutants.command import _exit_code
from bench.mutants.report import Row, markdown, noticed


def row(by: str, change: str = "removed", why: str = "") -> Row:
    return Row("sm_100a", "wait", change, "mbarrier.try_wait at a wait 0", by, "how", why)


def test_the_table_counts_verdicts_and_lists_survivors() -> None:
    rows = [row("checker")] * 7 + [row("emulator")] * 2 + [row("", "weakened", "Because")]
    text = markdown(rows, schedules=24)
    assert noticed(rows) == 0.9
    assert "## sm_100a: 9 of 10 noticed (90.0%); of removals 100.0%" in text
    assert "| wait | 10 | 7 | 0 | 2 | 0 | 1 |" in text
    assert "* weakened: mbarrier.try_wait at a wait 0. Because" in text
    assert "24 other schedules" in text


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([row("checker")] * 20 + [row("", why="Because")], 0),
        ([row("checker")] * 20 + [row("")], 1),
        ([row("checker")] * 10 + [row("", why="Because")], 1),
    ],
    ids=["explained", "not explained", "too few noticed"],
)
def test_the_exit_code(rows: list[Row], code: int) -> None:
    assert _exit_code(rows) == code
