"""Run a CuTe DSL kernel of your own for Blackwell on a CPU.

    python examples/emulate_your_kernel.py

The kernel below normalises each row by its root mean square, one warp per row. Nothing in it knows
of the emulator: the session alone decides where it runs, and no GPU, CUDA driver or C compiler is
needed. It is compiled once, then run under several schedules: the order in which warps run and
asynchronous effects happen must not change a single bit.
"""

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

import fa4.emulator

WARPS = 4  # per CTA: each takes one row
LANES = 32


@cute.kernel
def rms_norm_kernel(x: cute.Tensor, y: cute.Tensor, epsilon: cutlass.Constexpr):
    """y[row] = x[row] / sqrt(mean(x[row]^2) + epsilon); x and y are (rows, columns) float32."""
    lane = cute.arch.lane_idx()
    row = cute.arch.block_idx()[0] * WARPS + cute.arch.warp_idx()
    if row < x.shape[0]:
        squares = cutlass.Float32(0.0)
        for column in cutlass.range(lane, x.shape[1], LANES):
            squares += x[row, column] * x[row, column]
        # Every lane ends with the sum over the warp: a butterfly of five shuffles.
        for step in cutlass.range_constexpr(5):
            squares += cute.arch.shuffle_sync_bfly(squares, offset=1 << step)
        inverse = cute.math.rsqrt(squares / x.shape[1] + epsilon)
        for column in cutlass.range(lane, x.shape[1], LANES):
            y[row, column] = x[row, column] * inverse


@cute.jit
def rms_norm(x: cute.Tensor, y: cute.Tensor):
    """Host side: one CTA for every `WARPS` rows."""
    rms_norm_kernel(x, y, 1e-6).launch(
        grid=[cute.ceil_div(x.shape[0], WARPS), 1, 1], block=[WARPS * LANES, 1, 1]
    )


def run(compiled: object, x: torch.Tensor, schedule: str, seed: int) -> torch.Tensor:
    """One emulated launch; prints its statistics."""
    y = torch.full_like(x, torch.nan)
    with fa4.emulator.session(schedule=schedule, seed=seed) as emulated:
        compiled(from_dlpack(x), from_dlpack(y))
    (launch,) = emulated.launches
    print(
        f"{schedule:8} seed {seed}: grid {launch.grid}, block {launch.block}, "
        f"{launch.stats.warp_instructions} warp-instructions in {launch.stats.seconds:.3f} s"
    )
    return y


def main() -> int:
    """Compare with torch and across schedules; exit code 1 when they differ."""
    x = torch.randn(10, 200, generator=torch.Generator().manual_seed(0))
    with fa4.emulator.session():
        compiled = cute.compile(rms_norm, from_dlpack(x), from_dlpack(x))
    schedules = [("early", 0), ("late", 0), ("random", 1), ("priority", 2), ("priority", 3)]
    results = [run(compiled, x, schedule, seed) for schedule, seed in schedules]

    expected = x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt()
    error = max((y - expected).abs().max().item() for y in results)
    same = all(torch.equal(y, results[0]) for y in results)
    print(f"largest error {error:.1e}; the same bits under every schedule: {same}")
    return 0 if error < 1e-5 and same else 1


if __name__ == "__main__":
    raise SystemExit(main())
