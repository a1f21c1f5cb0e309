"""Where the software tensor memory and tensor core of one SM lie in global memory, in bytes.

    tensor memory   512 columns of 128 lanes of 32-bit cells: cell = 128 * column + lane
    control         the words below
    ring            what the kernel asked of its tensor core, oldest first

An entry of the ring: u32 what, u32 warps of the tensor core that are not done with it, then for an
MMA u32 D, u32 instruction descriptor, u64 A, u64 B; for a commit u32 mbarrier.
All zeros is the state between two CTAs, except for the contents of tensor memory.
"""

COLUMNS, LANES, CELL = 512, 128, 4
COLUMN = LANES * CELL
TENSOR_MEMORY = COLUMNS * COLUMN

OWNER = TENSOR_MEMORY  # number of the CTA (from 1) that has the tensor memory; 0: it is free
ISSUER = OWNER + 4  # number of the warp (from 1) that issues MMAs; 0: none did so far
ISSUED = OWNER + 8  # entries written so far
PUBLISHED = OWNER + 12  # entries that the tensor core may start
FAULT = OWNER + 16  # 4 words: a code of FAULTS, then its details

RING = OWNER + 1024
ENTRIES, ENTRY = 256, 32
STRIDE = RING + ENTRIES * ENTRY

MAX_SMS = 192  # %smid of any Hopper GPU is below

# Bits 0-1 of an entry's first word say what it is; an MMA adds the flags.
MMA, COMMIT, STOP = 0, 1, 2
A_IN_TENSOR_MEMORY, ACCUMULATE = 4, 8

FAULTS = {
    1: "tcgen05.mma with instruction descriptor {0:#010x} (D {1:#x}); covered: M 128, N a multiple "
    "of 16, D float32, A and B both float16 or both bfloat16, no negation, dense",
    2: "tcgen05.mma with shared-memory descriptor {1:#010x}{0:08x}; covered: swizzles of 0, 32, 64 "
    "and 128 bytes, base offset 0",
    3: "warp {0} issues tcgen05.mma or commit after warp {1} did; covered: one warp issues them",
}
