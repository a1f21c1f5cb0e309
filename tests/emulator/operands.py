"""Matrix operands of the tensor core: bytes in shared memory and their values."""

import numpy as np


def layout(matrix, swizzle, mn_major=False):
    """Bytes of a (rows, 32 bytes of K) operand in the canonical layout, with its strides.

    K-major: atoms of 8 rows; MN-major: atoms of 8 K by one swizzled row of M.
    """
    width = 16 << swizzle
    if mn_major:
        matrix = np.ascontiguousarray(matrix.T)  # (K, rows)
    raw = matrix.view(np.uint8)
    rows, length = raw.shape
    memory = np.zeros(32768, np.uint8)
    for row in range(rows):
        for unit in range(length // 16):
            if not mn_major:
                place = row // 8 * 8 * width + row % 8 * width + unit * 16
                if swizzle == 0:
                    place = row * 16 + unit * rows * 16
            else:
                per = width // 16
                place = unit // per * (rows * width) + row * width + unit % per * 16
                if swizzle == 0:
                    place = unit * 128 + row % 8 * 16 + row // 8 * (length * 8)
            place = place // 16
            place ^= place >> 3 & (1 << swizzle) - 1
            memory[16 * place : 16 * place + 16] = raw[row, 16 * unit : 16 * unit + 16]
    if not mn_major:
        leading, stride = (rows * 16, 128) if swizzle == 0 else (16, 8 * width)
    elif swizzle == 0:
        leading, stride = length * 8, 128
    else:
        leading, stride = rows * width, 8 * width
    return memory, leading, stride


def bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16), (bits & 0xFFFF0000).view(np.float32)


def random_bf16(rows, k, seed):
    return bf16(np.random.default_rng(seed).standard_normal((rows, k)))


def product(m, n, swizzle=3, majors=(0, 0)):
    """Random bf16 A (m, 16) and B (n, 16): the bytes of both, the strides of both, and A B^T."""
    (a_bits, a), (b_bits, b) = random_bf16(m, 16, 1), random_bf16(n, 16, 2)
    a_memory, *a_strides = layout(a_bits, swizzle, majors[0])
    b_memory, *b_strides = layout(b_bits, swizzle, majors[1])
    return (a_memory, b_memory), (a_strides, b_strides), a @ b.T
