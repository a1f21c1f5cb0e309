"""Software exp2: the polynomials, and the compiled function swept in the emulator."""

import math

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
import torch
from cutlass.cute.runtime import from_dlpack

from fa4 import emulator
from fa4.numerics.exp2 import COEFFICIENTS, exp2_fma
from fa4.numerics.online_softmax import RunningMax
from fa4.numerics.pairs import PairMath

# maximum relative error on [0, 1], as the docstring of fa4.numerics.exp2 states them
ERRORS = {3: 8.6e-5, 4: 2.9e-6, 5: 8.3e-8}


@pytest.mark.parametrize("degree", COEFFICIENTS)
def test_polynomials_are_minimax(degree: int) -> None:
    """Equioscillation: a minimax fit with p(0) = 1 touches its error at degree + 1 points."""
    x = np.linspace(0.0, 1.0, 100001)
    error = np.polynomial.polynomial.polyval(x, COEFFICIENTS[degree]) * 2.0**-x - 1.0
    assert np.abs(error).max() == pytest.approx(ERRORS[degree], rel=0.02)
    runs = np.split(error, np.where(np.diff(np.sign(error)))[0] + 1)
    peaks = [np.abs(run).max() for run in runs if np.abs(run).max() > ERRORS[degree] / 10]
    assert len(peaks) == degree + 1
    assert min(peaks) > 0.9 * max(peaks)


@cute.kernel
def _kernel(x: cute.Tensor, y: cute.Tensor, degree: cutlass.Constexpr[int]) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = (block * 128 + thread) * 2
    y[i], y[i + 1] = exp2_fma((x[i], x[i + 1]), degree)


@cute.jit
def _host(x: cute.Tensor, y: cute.Tensor, degree: cutlass.Constexpr[int]) -> None:
    _kernel(x, y, degree).launch(grid=[cute.size(x) // 256, 1, 1], block=[128, 1, 1])


@pytest.mark.parametrize("degree", COEFFICIENTS)
def test_compiled_exp2(degree: int) -> None:
    x = torch.linspace(-140.0, 30.0, 4096)
    x[:4] = torch.tensor([-math.inf, -127.0, 0.0, 1.0])
    y = torch.full_like(x, torch.nan)
    with emulator.session():
        args = from_dlpack(x), from_dlpack(y)
        cute.compile(_host, *args, degree)(*args)
    exact = torch.exp2(x.double())
    normal = x >= -126.0
    relative = (y.double() / exact - 1.0).abs()[normal]
    assert relative.max() < ERRORS[degree] * 1.02 + 3e-7  # and the rounding of float32
    assert (y[~normal] <= 2.0**-126).all()
    assert (y >= 0.0).all()
    assert y[0] == 0.0  # a hidden key counts nothing at all
    assert y[2] == 1.0


@pytest.mark.parametrize("emulated", [0, 8, 16, 24, 48, 128])
def test_emulated_share_is_exact_and_even(emulated: int) -> None:
    strategy = RunningMax(
        threshold=8.0, exp2_degree=3, exp2_emulated=emulated, math=PairMath(packed=True)
    )
    chosen = [strategy._emulates(i) for i in range(0, 128, 2)]
    assert 2 * sum(chosen) == emulated
    chunk = chosen[:16]
    assert chosen == 4 * chunk  # masked blocks permute chunks of 32 keys
    quarters = [sum(chunk[i : i + 4]) for i in range(0, 16, 4)]
    assert max(quarters) - min(quarters) <= 1
