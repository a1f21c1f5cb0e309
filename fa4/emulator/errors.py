"""Errors of the emulator. Each names what happened; the engine adds where it happened."""


class EmulatorError(Exception):
    """Base of all errors of an emulated kernel.

    `message` says what is wrong; `context` (added while the error travels up) says where: the
    instruction, its PTX line, the warp or role and the source line.
    """

    def __init__(self, message: str, context: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.context = context

    def __str__(self) -> str:
        return f"{self.message}\n{self.context}" if self.context else self.message


class PtxSyntaxError(EmulatorError):
    """The PTX text could not be parsed."""


class UnsupportedInstruction(EmulatorError):
    """The kernel reached an instruction or a form of it that the emulator does not run."""


class LaunchError(EmulatorError):
    """The launch does not fit the kernel: parameters, block, cluster or shared memory."""


class AddressError(EmulatorError):
    """A memory access outside every known range, or not aligned as the instruction requires."""


class DescriptorError(EmulatorError):
    """An invalid TMA, shared-memory or instruction descriptor."""


class BarrierError(EmulatorError):
    """Wrong use of an mbarrier or of a named barrier."""


class TensorMemoryError(EmulatorError):
    """Wrong use of tensor memory: allocation, columns or lanes."""


class WarpgroupError(EmulatorError):
    """Wrong use of wgmma: its warps, fences, groups, or registers that are in flight."""


class RegisterError(EmulatorError):
    """Wrong use of setmaxnreg."""


class KernelTrap(EmulatorError):
    """The kernel executed `trap`."""


class DeadlockError(EmulatorError):
    """No warp can make progress. The message is a table of what each warp waits for."""
