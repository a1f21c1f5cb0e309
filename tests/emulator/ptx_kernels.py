"""Small PTX kernels for tests: text in, arrays in and out."""

import numpy as np

from fa4.emulator.memory import GlobalMemory
from fa4.emulator.program import Launch, Program, RunStats, Schedule, Touched

KINDS = ("early", "late", "random", "priority")
_DECLARATIONS = """
.reg .pred %p<40>; .reg .b16 %h<40>; .reg .b32 %r<100>; .reg .f32 %f<100>; .reg .b64 %d<60>;
.reg .f64 %g<20>; .reg .b128 %q<8>;
"""


def module(body: str, params: int = 0, directives: str = "") -> str:
    """A PTX module with kernel `k` whose parameters p0, p1, ... are 64-bit."""
    declared = ", ".join(f".param .u64 p{i}" for i in range(params))
    loads = "".join(f"ld.param.u64 %d{50 + i}, [p{i}];\n" for i in range(params))
    return f""".version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k({declared}) {directives} {{
{_DECLARATIONS}
mov.u32 %r99, %tid.x;
{loads}
{body}
ret;
}}
"""


def run(
    body: str,
    *arrays: np.ndarray,
    threads: int = 32,
    ctas: int = 1,
    cluster: int = 1,
    smem: int = 0,
    schedule: Schedule | None = None,
    directives: str = "",
    unordered: Touched | None = None,
    **options: object,
) -> RunStats:
    """Runs a kernel body. Array i's address is in %d(50 + i); %r99 is the thread index."""
    memory = GlobalMemory()
    for number, array in enumerate(arrays):
        memory.add(array.ctypes.data, array.nbytes, f"p{number}")
    params = np.array([array.ctypes.data for array in arrays], np.uint64).tobytes()
    sizes = (ctas, 1, 1), (threads, 1, 1), (cluster, 1, 1)
    launch = Launch(*sizes, smem, params, unordered=unordered)
    program = Program.from_ptx(module(body, len(arrays), directives), "k")
    return program.run(launch, memory, schedule or Schedule(), **options)


def element(register: str, pointer: str, size: int) -> str:
    """Puts the address of this thread's element of `pointer` into `register`."""
    return f"mad.wide.u32 {register}, %r99, {size}, {pointer};\n"


def each(operation: str, result: str, *inputs: np.ndarray, kinds: tuple[str, str]) -> np.ndarray:
    """Runs `operation` per thread: inputs in %x0, %x1, ..., the result in %y.

    `kinds` are the PTX types of inputs and result, e.g. ("u32", "u32").
    """
    count = len(inputs[0])
    source, target = kinds
    out = np.zeros(count, result)
    body = f"{{ .reg .{_storage(source)} %x<4>; .reg .{_storage(target)} %y;\n"
    for number, array in enumerate(inputs):
        body += element(f"%d{number}", f"%d{50 + number}", array.itemsize)
        body += f"ld.global.{_bits(source)} %x{number}, [%d{number}];\n"
    body += operation + "\n" + element("%d10", f"%d{50 + len(inputs)}", out.itemsize)
    body += f"st.global.{_bits(target)} [%d10], %y; }}\n"
    run(body, *inputs, out, threads=count)
    return out


def _storage(kind: str) -> str:
    return {"16": "b16", "32": "b32", "64": "b64"}[_bits(kind)[1:]]


def _bits(kind: str) -> str:
    width = {"f16x2": "32", "bf16x2": "32", "f32x2": "64", "f16": "16", "bf16": "16"}.get(kind)
    return "b" + (width or kind[1:])


def aligned(nbytes: int, align: int = 1024) -> np.ndarray:
    """Zeroed uint8 array at an aligned address."""
    raw = np.zeros(nbytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes]


def tensor_map(
    array: np.ndarray, kind: int, dims: tuple, strides: tuple, box: tuple, swizzle: int = 0
) -> np.ndarray:
    """A 128-byte tensor map of `array`; dims and box innermost first, strides in bytes."""
    raw = aligned(128)
    words = raw.view(np.uint32)
    words[0], words[1] = array.ctypes.data & 0xFFFFFFFF, array.ctypes.data >> 32
    words[2] = 2 | (len(dims) - 1) << 4 | kind << 7 | swizzle << 13 | 1 << 18
    for number, stride in enumerate(strides):
        words[3 + number] = stride >> 4
    for number, (dim, extent) in enumerate(zip(dims, box, strict=True)):
        words[8 + number] = dim - 1
        raw[55 + number] = extent - 1
    return raw


def wait(barrier: str, parity: int | str, name: str) -> str:
    """A loop that waits for a phase of the mbarrier at shared address `barrier`."""
    return f"""
{name}: mbarrier.try_wait.parity.shared.b64 %p30, [{barrier}], {parity};
@!%p30 bra {name};
"""
