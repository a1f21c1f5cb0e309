"""Named-barrier ids. Id 0 belongs to `__syncthreads`."""

TMEM_ALLOCATED = 1  # every warp: the base address of tensor memory is in shared memory
TMEM_DRAINED = 2  # correction and MMA warps: nothing reads tensor memory any more
