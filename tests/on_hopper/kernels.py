"""Small sm_100a kernels, rewritten and emulated as sm_90a."""

import numpy as np

from fa4.emulator.memory import GlobalMemory
from fa4.emulator.program import Launch, Program, Schedule
from fa4.on_hopper import workspace as ws
from fa4.on_hopper.modes import Modes
from fa4.on_hopper.rewrite import rewrite
from tests.emulator.ptx_kernels import module

THREADS = 128
# %r2: address of the tensor memory; %r3: of this warp's lanes in it; %r10: an mbarrier, count 1
BEGIN = """mov.u32 %r1, smem; shr.u32 %r90, %r99, 5; setp.eq.u32 %p20, %r90, 0;
setp.eq.u32 %p1, %r99, 0; add.u32 %r10, %r1, 8;
@!%p20 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 256;
ALLOCATED: @%p1 mbarrier.init.shared.b64 [%r10], 1;
bar.sync 0; ld.shared.u32 %r2, [%r1]; shl.b32 %r91, %r90, 21; add.u32 %r3, %r2, %r91;
"""
END = """bar.sync 0; @!%p20 bra FREED; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 256;
FREED:
"""


def kernel(body, arrays=0):
    """A module whose kernel `k` runs `body` with tensor memory allocated."""
    return module(BEGIN + body + END, arrays, ".reqntid 128, 1, 1")


def run(body, *arrays, modes=None, kind="early", seed=0, smem=1024):
    """Runs the rewritten kernel; returns the SM's workspace as 32-bit words."""
    made = rewrite(kernel(body, len(arrays)), "k", modes or Modes())
    workspace = np.zeros(ws.STRIDE // 4 + 256, np.uint32)
    workspace = workspace[-workspace.ctypes.data % 1024 // 4 :][: ws.STRIDE // 4]
    memory = GlobalMemory()
    memory.add(workspace.ctypes.data, workspace.nbytes, "workspace")
    for number, array in enumerate(arrays):
        memory.add(array.ctypes.data, array.nbytes, f"p{number}")
    addresses = [array.ctypes.data for array in arrays]
    params = np.array([*addresses, workspace.ctypes.data], np.uint64).tobytes()
    params += np.uint32(seed).tobytes()
    launch = Launch((1, 1, 1), (made.threads, 1, 1), (1, 1, 1), smem, params)
    Program.from_ptx(made.ptx, "k").run(launch, memory, Schedule(kind, seed))
    return workspace


def dump(columns):
    """PTX: tensor memory as (column, lane) words at %d51."""
    return f"""mad.wide.u32 %d3, %r99, 4, %d51; mov.u32 %r5, 0;
DUMP: tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r6}}, [%r3]; tcgen05.wait::ld.sync.aligned;
st.global.b32 [%d3], %r6; add.u64 %d3, %d3, 512; add.u32 %r3, %r3, 1; add.u32 %r5, %r5, 1;
setp.lt.u32 %p2, %r5, {columns}; @%p2 bra DUMP;
"""
