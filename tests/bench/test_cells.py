"""The grid, and what counts as its work."""

import pytest

from bench.hopper.cells import LENGTHS, Cell, grid, length_name, tflops


def test_the_grid_holds_every_cell_once():
    cells = grid()
    assert len(cells) == len(set(cells)) == 3 * 2 * 6 + 2 * 6
    assert {c.batch * c.length for c in cells} == {16384}
    assert {c.heads_q * c.head_dim for c in cells if c.heads_q == c.heads_kv} == {2048}
    assert {c.group for c in cells if c.heads_q != c.heads_kv} == {
        "d128 full gqa 32/8",
        "d128 causal gqa 32/8",
    }
    assert str(cells[0]) == "d64 full 512"


def test_the_grid_can_be_narrowed():
    assert [str(c) for c in grid(("mha",), (64,), ("causal",), (1024, 8192))] == [
        "d64 causal 1k",
        "d64 causal 8k",
    ]
    assert grid(("gqa",), (64,)) == []


def test_flops_count_both_products_and_half_of_a_causal_square():
    # one head, 4 x 4 scores, head dim 8: 2 products of 16 * 8 multiply-adds
    cell = Cell(8, False, 16384, 1, 1)
    assert cell.flops == 2 * 2 * 16384 * 16384 * 8
    assert Cell(8, True, 16384, 1, 1).flops * 2 == cell.flops
    # key/value heads that are shared save no work
    assert Cell(128, False, 1024, 32, 8).flops == Cell(128, False, 1024, 32, 32).flops
    by_length = [Cell(128, False, n, 16, 16).flops / n for n in LENGTHS]
    assert len(set(by_length)) == 1


def test_rates_and_names():
    assert tflops(2 * 10**12, 4.0) == pytest.approx(500.0)
    assert [length_name(n) for n in (512, 1024, 16384, 1536)] == ["512", "1k", "16k", "1536"]
