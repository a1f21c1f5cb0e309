"""PTX kernels around wgmma: operands from global to shared memory, accumulators to global."""

import numpy as np

from fa4.emulator.program import Schedule
from tests.emulator.ptx_kernels import aligned, run

A_PLACE, B_PLACE = 0, 32768  # offsets in dynamic shared memory
PLACE_BYTES = 32768
_FIELDS = {0: 0, 1: 3, 2: 2, 3: 1}  # log2 of swizzled units -> bits 62-63 of a descriptor
_DEPTH = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}

# %d20 is the start of shared memory in a descriptor, %r10 the byte offset in it of this thread.
_PROLOGUE = """{{ .reg .f32 %acc<160>; .reg .b32 %a<8>; .reg .b32 %zero;
mov.u32 %r1, smem; shr.u32 %r2, %r1, 4; cvt.u64.u32 %d20, %r2; mov.u32 %zero, 0;
mul.lo.u32 %r3, %r99, 16; cvt.u64.u32 %d0, %r3; add.u64 %d0, %d0, %d50; add.u32 %r10, %r1, %r3;
mov.u32 %r4, %r10; mov.u32 %r5, %r3;
COPY: ld.global.v4.b32 {{%r6, %r7, %r8, %r9}}, [%d0];
st.shared.v4.b32 [%r4], {{%r6, %r7, %r8, %r9}};
add.u64 %d0, %d0, {stride}; add.u32 %r4, %r4, {stride}; add.u32 %r5, %r5, {stride};
setp.lt.u32 %p2, %r5, 65536; @%p2 bra COPY;
fence.proxy.async.shared::cta; bar.sync 0;
shr.u32 %r90, %r99, 5;
"""
FENCE = "wgmma.fence.sync.aligned;\n"
COMMIT = "wgmma.commit_group.sync.aligned;\n"


def wait(limit: int = 0) -> str:
    """wgmma.wait_group."""
    return f"wgmma.wait_group.sync.aligned {limit};\n"


def descriptor(offset: int, leading: int, stride: int, swizzle: int) -> int:
    """A descriptor relative to the start of dynamic shared memory."""
    return offset >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | _FIELDS[swizzle] << 62


def registers(count: int, first: int = 0, name: str = "acc") -> str:
    """A brace list of registers."""
    return "{" + ", ".join(f"%{name}{first + i}" for i in range(count)) + "}"


def mma(
    n: int,
    a: int | None,
    b: int,
    formats: tuple[str, str] = ("bf16", "bf16"),
    *,
    keep: int = 0,
    first: int = 0,
    signs: tuple[int, int] = (1, 1),
    majors: tuple[int, int] = (0, 0),
) -> str:
    """wgmma.mma_async into %acc from `first` on; `a` None takes A from %a0 to %a3."""
    place = registers(4, name="a") if a is None else "%d5"
    flags = [*signs]
    if _DEPTH[formats[0]] == 16:
        flags += majors[1:] if a is None else majors
    shape = f"m64n{n}k{_DEPTH[formats[0]]}"
    return f"""add.u64 %d5, %d20, {a or 0}; add.u64 %d6, %d20, {b}; setp.ne.u32 %p5, {keep}, 0;
    wgmma.mma_async.sync.aligned.{shape}.f32.{formats[0]}.{formats[1]}
    {registers(n // 2, first)}, {place}, %d6, %p5, {", ".join(map(str, flags))};\n"""


def zero_operand(place: int) -> str:
    """Overwrites an operand in shared memory with zeros, by threads 0-127."""
    return "".join(
        f"st.shared.v4.b32 [%r10+{place + step}], {{%zero, %zero, %zero, %zero}};\n"
        for step in range(0, 4096, 2048)
    )


def load_left() -> str:
    """Loads %a0 to %a3 from the array of words of A: word 4 * thread + i."""
    text = "mul.wide.u32 %d7, %r99, 16; add.u64 %d7, %d7, %d52;\n"
    return text + "".join(f"ld.global.b32 %a{i}, [%d7+{4 * i}];\n" for i in range(4))


def dump(count: int, threads: int = 128, first: int = 0) -> str:
    """Stores %acc registers to the output array, (register, thread)."""
    text = "mul.wide.u32 %d3, %r99, 4; add.u64 %d3, %d3, %d51;\n"
    for i in range(count):
        text += f"st.global.f32 [%d3+{4 * threads * i}], %acc{first + i};\n"
    return text


def execute(
    body: str,
    a: np.ndarray,
    b: np.ndarray,
    count: int,
    *,
    threads: int = 128,
    left: np.ndarray | None = None,
    schedule: Schedule | None = None,
) -> np.ndarray:
    """Runs a body on operands that lie at A_PLACE and B_PLACE.

    Returns the first `count` accumulators, (count, threads) float32. `left`: words of A, (128, 4).
    """
    image = aligned(2 * PLACE_BYTES)
    image[: a.size], image[PLACE_BYTES : PLACE_BYTES + b.size] = a, b
    out = np.zeros((count, threads), np.float32)
    extra = np.zeros((threads, 4), np.uint32) if left is None else left
    text = _PROLOGUE.format(stride=16 * threads) + body + dump(count, threads) + "}"
    run(text, image, out, extra, threads=threads, smem=2 * PLACE_BYTES, schedule=schedule)
    return out


def accumulators(matrix: np.ndarray) -> np.ndarray:
    """A (64, N) matrix as registers (N / 2, 128), by the PTX ISA's figure of the fragment."""
    threads = np.arange(128)
    warp, group, pair = threads // 32, threads % 32 // 4, threads % 4
    found = np.empty((matrix.shape[1] // 2, 128), matrix.dtype)
    for i in range(len(found)):
        row = 16 * warp + group + (8 if i % 4 >= 2 else 0)
        found[i] = matrix[row, 8 * (i // 4) + 2 * pair + i % 2]
    return found


def left_registers(matrix: np.ndarray) -> np.ndarray:
    """A (64, 32 bytes) operand as words (128, 4), by the PTX ISA's figure of the fragment."""
    words = np.ascontiguousarray(matrix).view(np.uint32).reshape(64, 8)
    found = np.empty((128, 4), np.uint32)
    for thread in range(128):
        warp, group, pair = thread // 32, thread % 32 // 4, thread % 4
        for i in range(4):
            found[thread, i] = words[16 * warp + group + 8 * (i % 2), pair + 4 * (i // 2)]
    return found
