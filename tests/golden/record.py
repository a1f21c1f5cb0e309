"""Records the golden results: `python -m tests.golden.record [KERNEL ...]` on a Hopper GPU."""

import sys

import torch

import fa4
from tests.golden.cases import CASES, Golden


def compute(case: Golden) -> tuple[torch.Tensor, torch.Tensor]:
    """O (1, rows, 2, D) and LSE (1, 2, rows) on the GPU."""
    q, k, v = (t.cuda() for t in case.inputs())
    if case.kernel == "fa4":
        return fa4.flash_attn_func(q, k, v, causal=case.causal, return_lse=True)
    if case.kernel == "blackwell":
        with fa4.on_hopper.session():
            return fa4.flash_attn_func(q, k, v, causal=case.causal, return_lse=True)
    from flash_attn.cute.interface import flash_attn_func

    return flash_attn_func(q, k, v, causal=case.causal, return_lse=True)[:2]


if __name__ == "__main__":
    assert torch.cuda.get_device_capability() == (9, 0), "record on compute capability 9.0"
    kernels = sys.argv[1:] or {case.kernel for case in CASES}
    for case in (case for case in CASES if case.kernel in kernels):
        case.save(*compute(case))
        print(f"{case.name}: recorded on {torch.cuda.get_device_name()}")
