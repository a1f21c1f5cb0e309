"""What a checked run costs beside a plain one."""

import time

import pytest
import torch

import fa4
from fa4.emulator import session

LIMIT = 4.0


@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_a_checked_run_takes_at_most_four_times_as_long(arch, monkeypatch):
    monkeypatch.setenv("FA4_EMULATE_ARCH", arch)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1024, 1, 128, generator=generator).bfloat16() for _ in range(3))

    def seconds(check: bool) -> float:
        with session(arch=arch, num_sms=1, check=check):
            start = time.thread_time()  # of this thread: other work on the machine does not count
            fa4.flash_attn_func(q, k, v)
            return time.thread_time() - start

    for check in (False, True):
        seconds(check)  # translates the kernel
    plain, checked = (min(seconds(check) for _ in range(3)) for check in (False, True))
    print(f"{arch}: plain {plain:.3f} s, checked {checked:.3f} s, ratio {checked / plain:.2f}")
    assert checked < LIMIT * plain
