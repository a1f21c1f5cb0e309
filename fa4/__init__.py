"""Attention kernels for NVIDIA Blackwell, one readable file per warp role."""

from fa4._version import __version__

__all__ = ["__version__"]
