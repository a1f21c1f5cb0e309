"""Emulates the rewritten program: what a Hopper GPU would run, on a CPU."""

from dataclasses import dataclass, field, replace

import torch

from fa4.emulator.cuda_runtime import Kernel
from fa4.emulator.sessions import Session
from fa4.on_hopper import workspace as ws
from fa4.on_hopper.arguments import ExtendedArguments
from fa4.on_hopper.modes import Modes
from fa4.on_hopper.rewrite import rewrite


@dataclass(eq=False)
class RewrittenSession(Session):
    """An emulator session for sm_100a whose launches run as sm_90a."""

    modes: Modes = field(default_factory=Modes)
    shared: torch.Tensor | None = None  # workspaces of the SMs, as the last launch left them

    def launch(self, raw, ranges):
        made = rewrite(raw.kernel.ptx, raw.kernel.name, self.modes)
        if self.shared is None:
            self.shared = torch.zeros(self.device.num_sms, ws.STRIDE // 4, dtype=torch.int32)
        self.register(self.shared, name="workspace")
        arguments = ExtendedArguments(
            raw.arguments, made.params, self.shared.data_ptr(), len(self.launches)
        )
        changed = replace(
            raw,
            kernel=Kernel(made.entry, made.ptx),
            block=(made.threads, 1, 1),
            arguments=arguments.address,
        )
        self.arch = "sm_90a"
        try:
            super().launch(changed, ranges)
        finally:
            self.arch = "sm_100a"
