"""2^x on the FMA units, for pairs of float32, to take load off MUFU.EX2 (16 per clock and SM).

Cody-Waite range reduction in base 2: x = floor(x) + f with 0 <= f < 1, 2^x = 2^floor(x) p(f). The
floor is what adding 1.5 * 2^23 leaves when rounding down, and its integer stands in the low bits of
that sum, so a shift by 23 moves it into the exponent field of p(f).
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Int32

# p(f) ~ 2^f on [0, 1] with p(0) = 1, minimax in relative error (Remez exchange; the tests derive
# them again). Relative errors 8.6e-5, 2.9e-6, 8.2e-8; rounding P to bfloat16 alone costs 3.9e-3.
COEFFICIENTS = {
    3: (1.0, 0.6951167881, 0.2276449949, 0.0770670399),
    4: (1.0, 0.6930448413, 0.2412801981, 0.0522424690, 0.0134266792),
    5: (1.0, 0.6931513146, 0.2401644465, 0.0557999104, 0.0090170302, 0.0018671293),
}
ROUND_TO_INT = 12582912.0  # 1.5 * 2^23: one unit in the last place is 1
LOWEST = -127.0  # 2^x leaves the normal range below -126; P is 16-bit, so less than that is 0

Pair = tuple[Float32, Float32]


def exp2_fma(x: Pair, degree: int) -> Pair:
    """2^x for x <= 127, by a polynomial of `degree` 3 to 5; 0 or denormal below -126."""
    coefficients = COEFFICIENTS[degree]
    x = (cute.arch.fmax(x[0], LOWEST), cute.arch.fmax(x[1], LOWEST))
    rounded = cute.arch.add_packed_f32x2(x, (ROUND_TO_INT, ROUND_TO_INT), rnd="rm")
    whole = cute.arch.sub_packed_f32x2(rounded, (ROUND_TO_INT, ROUND_TO_INT))
    fraction = cute.arch.sub_packed_f32x2(x, whole)
    p = (coefficients[-1], coefficients[-1])
    for c in reversed(coefficients[:-1]):
        p = cute.arch.fma_packed_f32x2(p, fraction, (c, c))
    return _scale(p[0], rounded[0]), _scale(p[1], rounded[1])


def exp2_mufu(x: Pair) -> Pair:
    """2^x by the special function unit (ex2.approx)."""
    return cute.math.exp2(x[0], fastmath=True), cute.math.exp2(x[1], fastmath=True)


def _scale(p: Float32, rounded: Float32) -> Float32:
    """p * 2^n, n being the integer in the low bits of `rounded`: one shift-and-add."""
    bits = p.bitcast(Int32) + (rounded.bitcast(Int32) << 23)
    return bits.bitcast(Float32)
