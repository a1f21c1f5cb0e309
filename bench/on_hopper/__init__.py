"""Blackwell's kernels on a Hopper GPU, against the reference and against the emulator."""
