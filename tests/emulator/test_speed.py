"""The emulator's speed on this package's own kernel."""

import time

import torch

import fa4
from fa4.emulator import session

LIMIT = 0.03  # seconds of one core for a step of 256 queries x 128 keys at head dim 128


def test_a_step_of_the_forward_kernel():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1024, 1, 128, generator=generator).bfloat16() for _ in range(3))
    steps = (1024 // 256) * (1024 // 128)
    fa4.flash_attn_func(q, k, v)  # translates the kernel
    with session() as emulated:
        start = time.thread_time()  # of this thread: other work on the machine does not count
        fa4.flash_attn_func(q, k, v)
        seconds = time.thread_time() - start
    assert emulated.launches[0].stats.mmas == 32 * steps
    assert seconds / steps < LIMIT
