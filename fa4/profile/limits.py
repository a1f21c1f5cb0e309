"""What the generated code of the Blackwell kernels must not exceed; tests and tables read it here.

Static SASS instructions per warp at head dim 128. Anchors, counted with the same tool: 524-550
unmasked and 698 masked in flash-attn-4 4.0.0b36, 442 without emulation in cuDNN's open kernel,
245 and 192 per 32 MMAs; 565 in the compute loop of flash-attn-4's backward.
"""

SOFTMAX_UNMASKED = 500  # softmax loop per 128 keys, no mask
SOFTMAX_MASKED = 600  # the same with a per-row limit
BACKWARD_COMPUTE = 470  # compute loop of the backward per 64 scores of a thread, mask included
MMA_PER_32 = 220  # MMA loop per 32 tcgen05.mma
