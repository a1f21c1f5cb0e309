"""The same bits whatever the order in which warps and asynchronous effects take their turns."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest
import torch

import fa4
from bench.mutants.frozen import Tensors, jump
from fa4 import emulator

SEEDS = 16
HOSTILE = [("late", 0), *((kind, n) for kind in ("random", "priority") for n in range(SEEDS))]
MASKS = {"full": {}, "causal": {"causal": True}, "window": {"window_size": (150, 20)}}


@dataclass(frozen=True)
class Kernel:
    """An architecture's kernel, and whether it does some tiles of its problem a second time."""

    arch: str
    dims: tuple[int, int]
    mask: str
    redo: bool = False

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.dims))
        return f"{self.arch}-{sizes}-{self.mask}{'-redo' if self.redo else ''}"

    def inputs(self) -> Tensors:
        """Two heads on one of keys and values, in tiles of different lengths."""
        generator = torch.Generator().manual_seed(7)
        shapes = ((300, 2, self.dims[0]), (420, 1, self.dims[0]), (420, 1, self.dims[1]))
        q, k, v = (torch.randn(1, *s, generator=generator).to(torch.bfloat16) for s in shapes)
        return jump((q, k, v), 150, slice(0, 30)) if self.redo else (q, k, v)


@cache
def attention(
    kernel: Kernel, schedule: str = "early", seed: int = 0, num_sms: int = 2
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """O, LSE and the number of MMAs. Two SMs have four tiles or more: several per CTA."""
    with (
        pytest.MonkeyPatch.context() as patch,
        emulator.session(schedule, seed, kernel.arch, num_sms=num_sms) as emulated,
    ):
        patch.setenv("FA4_EMULATE_ARCH", kernel.arch)
        out, lse = fa4.flash_attn_func(*kernel.inputs(), **MASKS[kernel.mask], return_lse=True)
    return out, lse, emulated.launches[0].stats.mmas


HOPPER = [
    Kernel("sm_90a", dims, mask, redo)
    for dims in ((64, 64), (128, 128), (192, 128), (256, 256))
    for mask, redo in product(MASKS, (False, True))
]
ALWAYS = (Kernel("sm_100a", (64, 64), "causal"), Kernel("sm_90a", (64, 64), "causal", redo=True))


def runs() -> Iterator[object]:
    """All orders for every kernel; `make test` runs all for two kernels, and three for the rest."""
    for number, kernel in enumerate([ALWAYS[0], *HOPPER]):
        for schedule, seed in HOSTILE:
            short = kernel in ALWAYS or schedule == "late" or seed == number % SEEDS
            marks = () if short else pytest.mark.slow
            yield pytest.param(
                kernel, schedule, seed, id=f"{kernel}-{schedule}-{seed}", marks=marks
            )


@pytest.mark.parametrize(("kernel", "schedule", "seed"), list(runs()))
def test_same_bits(kernel: Kernel, schedule: str, seed: int) -> None:
    out, lse, mmas = attention(kernel, schedule, seed)
    expected_out, expected_lse, expected_mmas = attention(kernel)
    assert torch.equal(out, expected_out)
    assert torch.equal(lse, expected_lse)
    assert mmas == expected_mmas


@pytest.mark.parametrize("kernel", ALWAYS, ids=str)
def test_bits_do_not_depend_on_the_grid(kernel: Kernel) -> None:
    one_tile_per_cta, two_sms = attention(kernel, num_sms=148), attention(kernel)
    assert torch.equal(one_tile_per_cta[0], two_sms[0])
    assert torch.equal(one_tile_per_cta[1], two_sms[1])


@pytest.mark.parametrize("mask", MASKS)
def test_some_tiles_are_done_again(mask: str) -> None:
    """What the names above say: of the tiles of d64, the one with the first rows."""
    plain, again = (attention(Kernel("sm_90a", (64, 64), mask, redo))[2] for redo in (False, True))
    assert plain < again < 2 * plain
