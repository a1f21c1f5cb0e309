"""Named-barrier ids. Id 0 belongs to `__syncthreads`."""

GRADIENTS = 1  # all compute warps of a backward kernel, while dV and dK leave through smem
TMEM_DRAINED = 2  # correction and MMA warps: nothing reads tensor memory any more
WARPGROUP = 3  # and the following ids: the threads of one of Hopper's consumer warpgroups
TURN = 8  # and the following ids: the turn of one of Hopper's consumer warpgroups to issue MMAs
