"""The same bits whatever the order in which warps and asynchronous effects take their turns."""

import pytest
import torch

import fa4
from fa4 import emulator

SEEDS = range(16)
HOSTILE = [("late", 0), *[(kind, seed) for kind in ("random", "priority") for seed in SEEDS]]


def attention(schedule: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two SMs, eight tiles: several per CTA, of different lengths, with two heads per K and V."""
    generator = torch.Generator().manual_seed(7)

    def draw(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(2, rows, heads, 64, generator=generator).to(torch.bfloat16)

    q, k, v = draw(300, 2), draw(420, 1), draw(420, 1)
    with emulator.session(schedule=schedule, seed=seed, num_sms=2):
        return fa4.flash_attn_func(q, k, v, causal=True, return_lse=True)


@pytest.fixture(scope="module")
def early() -> tuple[torch.Tensor, torch.Tensor]:
    return attention("early", 0)


@pytest.mark.parametrize(("schedule", "seed"), HOSTILE)
def test_same_bits(schedule: str, seed: int, early: tuple[torch.Tensor, torch.Tensor]) -> None:
    out, lse = attention(schedule, seed)
    assert torch.equal(out, early[0])
    assert torch.equal(lse, early[1])


def test_bits_do_not_depend_on_the_grid(early: tuple[torch.Tensor, torch.Tensor]) -> None:
    generator = torch.Generator().manual_seed(7)
    q, k, v = (
        torch.randn(2, rows, heads, 64, generator=generator).to(torch.bfloat16)
        for rows, heads in ((300, 2), (420, 1), (420, 1))
    )
    with emulator.session(num_sms=148):
        out = fa4.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(out, early[0])
