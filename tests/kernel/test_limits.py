"""Index arithmetic at the ends of what `Problem` allows, in the compiled kernel's 32-bit words.

Each thread of a small kernel takes one line of numbers; Python's integers, which do not overflow,
say what must come out.
"""

import random

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack

from fa4 import emulator
from fa4.plan_blackwell import M_TILE, N_BLOCK, Q_TILES
from fa4.problem import MAX_LENGTH, MAX_QUERY_ROWS, example_problem
from fa4.tiles.block_range import Visibility
from fa4.tiles.scheduler import tile_schedule

CTA_ROWS = Q_TILES * M_TILE
LINES = 128


@cute.kernel
def decode_kernel(x: cute.Tensor, y: cute.Tensor, longest_first: cutlass.Constexpr[bool]) -> None:
    i, _, _ = cute.arch.thread_idx()
    sections = x[i, 4], x[i, 5]
    schedule = tile_schedule(x[i, 0], x[i, 1], x[i, 2], x[i, 3], sections, longest_first)
    tile = schedule.decode(x[i, 6])
    y[i, 0], y[i, 1], y[i, 2], y[i, 3] = tile.m, tile.head, tile.head_kv, tile.batch
    y[i, 4] = schedule.num_tiles


@cute.kernel
def visibility_kernel(x: cute.Tensor, y: cute.Tensor, left_bound: cutlass.Constexpr[bool]) -> None:
    i, _, _ = cute.arch.thread_idx()
    sees = Visibility(x[i, 0], x[i, 1], x[i, 2], x[i, 3], left_bound, True, N_BLOCK)
    row0 = x[i, 4] // CTA_ROWS * CTA_ROWS
    first, last = sees.blocks(row0, CTA_ROWS)
    tile = x[i, 4] // M_TILE * M_TILE
    blocks = sees.split(first, last, tile, M_TILE)
    y[i, 0], y[i, 1] = sees.row_begin(x[i, 4]), sees.row_end(x[i, 4])
    y[i, 2], y[i, 3], y[i, 4], y[i, 5] = first, blocks.full_first, blocks.full_last, last


@cute.jit
def decode_host(x: cute.Tensor, y: cute.Tensor, option: cutlass.Constexpr[bool]) -> None:
    decode_kernel(x, y, option).launch(grid=[1, 1, 1], block=[LINES, 1, 1])


@cute.jit
def visibility_host(x: cute.Tensor, y: cute.Tensor, option: cutlass.Constexpr[bool]) -> None:
    visibility_kernel(x, y, option).launch(grid=[1, 1, 1], block=[LINES, 1, 1])


def compute(host: object, lines: list[tuple[int, ...]], option: bool) -> list[list[int]]:
    x = torch.tensor(lines, dtype=torch.int32)
    y = torch.zeros(LINES, 6, dtype=torch.int32)
    with emulator.session():
        arguments = from_dlpack(x), from_dlpack(y)
        cute.compile(host, *arguments, option)(*arguments)
    return y.tolist()


def tile_lines() -> list[tuple[int, ...]]:
    """(num_m, heads, heads_kv, batch, section, last section, tile), tiles drawn from all and the
    last.
    """
    rng = random.Random(0)
    kinds = (  # seqlen_q, heads, heads_kv, batch
        *((1, 1, 1, 65536), (1, 4, 2, 65536 * 4), (300, 8, 1, 65537), (1, 6, 2, 2**30 // 6)),
        *((MAX_LENGTH, 1, 1, 1), (2**20 - 3, 16, 4, 64), (1, 1, 1, MAX_QUERY_ROWS)),
    )
    lines = []
    for index in range(LINES):
        seqlen_q, heads, heads_kv, batch = kinds[index % len(kinds)]
        example_problem(64, seqlen_q=seqlen_q, heads_q=heads, heads_kv=heads_kv, batch=batch)
        num_m = -(-seqlen_q // CTA_ROWS)
        tiles = num_m * heads * batch
        section = rng.choice((heads // heads_kv, min(3 * heads, heads * batch), heads * batch))
        sections = rng.randrange(-(-heads * batch // section))  # before the last one
        tile = tiles - 1 if index < 2 * len(kinds) else rng.randrange(tiles)
        last = heads * batch - sections * section
        lines.append((num_m, heads, heads_kv, batch, section, last, tile))
    return lines


@pytest.mark.parametrize("longest_first", [False, True])
def test_fault_10_tile_numbers_of_huge_batches(longest_first: bool) -> None:
    lines = tile_lines()
    for line, found in zip(lines, compute(decode_host, lines, longest_first), strict=True):
        num_m, heads, heads_kv, batch, section, last, number = line
        before = min(number // (section * num_m), (heads * batch - last) // section)
        width = last if before * section + last == heads * batch else section
        m, place = divmod(number - before * section * num_m, width)
        b, head = divmod(before * section + place, heads)
        m = num_m - 1 - m if longest_first else m
        assert found[:5] == [m, head, head * heads_kv // heads, b, num_m * heads * batch], line


def row_lines() -> list[tuple[int, ...]]:
    """(seqlen_q, seqlen_k, left, right, row): rows from the first to the last of the last tile."""
    rng = random.Random(1)
    lengths = (MAX_LENGTH, MAX_LENGTH - 127, MAX_LENGTH - 300, 2**22, 777, 1)
    lines = []
    while len(lines) < LINES:
        problem = example_problem(
            64,
            seqlen_q=rng.choice(lengths),
            seqlen_k=rng.choice(lengths),
            window_left=rng.choice((0, 5, 1000, 2**40)),
            window_right=rng.choice((0, 5, 1000, 2**40)),
        )
        rows = -(-problem.seqlen_q // CTA_ROWS) * CTA_ROWS
        row = rng.choice((0, problem.seqlen_q - 1, rows - 1, rng.randrange(rows)))
        window = problem.window_left, problem.window_right
        lines.append((problem.seqlen_q, problem.seqlen_k, *window, row))
    return lines


def expected(line: tuple[int, ...], left_bound: bool) -> list[int]:
    """What `visibility_kernel` writes for a line."""
    seqlen_q, seqlen_k, left, right, row = line

    def seen(row: int) -> tuple[int, int]:
        middle = row + seqlen_k - seqlen_q
        return max(0, middle - left) if left_bound else 0, min(seqlen_k, middle + right + 1)

    top, tile = row // CTA_ROWS * CTA_ROWS, row // M_TILE * M_TILE
    bottom = min(top + CTA_ROWS, seqlen_q) - 1
    last = -(-max(seen(bottom)[1], 1) // N_BLOCK)
    first = min(seen(top)[0] // N_BLOCK, last - 1)
    full_last = max(min(max(seen(tile)[1], 0) // N_BLOCK, last), first)
    full_first = first
    if left_bound:
        full_first = -(-seen(tile + M_TILE - 1)[0] // N_BLOCK)
        full_first = min(max(full_first, first), full_last)
    return [*seen(row), first, full_first, full_last, last]


@pytest.mark.parametrize("left_bound", [False, True])
def test_what_rows_see_at_the_largest_lengths(left_bound: bool) -> None:
    lines = row_lines()
    found = compute(visibility_host, lines, left_bound)
    assert found == [expected(line, left_bound) for line in lines]
