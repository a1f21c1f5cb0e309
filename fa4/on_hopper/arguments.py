"""The kernel's arguments with the two of the rewritten kernel behind them."""

from __future__ import annotations

import ctypes


class ExtendedArguments:
    """An array of pointers to arguments: the first `count` of the array at `own`, then ours.

    `address` is what a launch takes; it is valid as long as this object and the kernel's arguments.
    """

    def __init__(self, own: int, count: int, workspace: int, seed: int) -> None:
        self._workspace, self._seed = ctypes.c_uint64(workspace), ctypes.c_uint32(seed)
        pointers = (ctypes.c_void_p * count).from_address(own) if count else ()
        self._array = (ctypes.c_void_p * (count + 2))(
            *pointers, ctypes.addressof(self._workspace), ctypes.addressof(self._seed)
        )
        self.address = ctypes.addressof(self._array)
