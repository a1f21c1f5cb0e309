"""Cubins of flash-attn-4's sm_100 forward, compiled here, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bench.cases import Case

# Shapes only: fake tensors on a device that need not exist. The device's properties that the
# package asks for while it compiles are those of a B200.
_PROGRAM = """
import sys
import torch
import cutlass.utils
from torch._subclasses.fake_tensor import FakeTensorMode

class B200:
    def __init__(self, device_id=0): pass
    def get_device_multiprocessor_count(self): return 148
    def get_max_active_clusters(self, size): return 148 // size
    def get_l2_cache_size_in_bytes(self): return 126 << 20

cutlass.utils.HardwareInfo = B200
import flash_attn.cute.interface as interface

d, dv, causal = (int(word) for word in sys.argv[1:])
with FakeTensorMode():
    q, k, v = (
        torch.empty(1, 4096, 1, dim, dtype=torch.bfloat16, device="cuda") for dim in (d, d, dv)
    )
    interface._flash_attn_fwd(q, k, v, causal=bool(causal))
"""
_ENVIRONMENT = {
    "FLASH_ATTENTION_ARCH": "sm_100",
    "FLASH_ATTENTION_NUM_SMS": "148",
    "CUTE_DSL_ARCH": "sm_100a",
    "CUTE_DSL_KEEP": "cubin",
}


def missing() -> str:
    """Why flash-attn-4 cannot be compiled here, empty when it can."""
    wanted = ("flash_attn", "quack", "triton")
    absent = [name for name in wanted if find_spec(name) is None]
    return f"not installed: {', '.join(absent)} (extra `peers`)" if absent else ""


def compile_peer(case: Case) -> bytes:
    """The cubin of one case. Raises RuntimeError with the end of the output when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _PROGRAM]
        command += [str(case.head_dim), str(case.head_dim_v), str(int(case.causal))]
        environment = {**os.environ, **_ENVIRONMENT, "CUTE_DSL_DUMP_DIR": folder}
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        cubins = sorted(Path(folder).glob("*.cubin"))
        if done.returncode or len(cubins) != 1:
            raise RuntimeError(f"flash-attn-4 {case}: {len(cubins)} cubins\n{done.stderr[-2000:]}")
        return cubins[0].read_bytes()
