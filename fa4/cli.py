"""`python -m fa4` and the console script `fa4`: demo, doctor, inspect, profile, verify."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from fa4._version import __version__

# Modules load when their command runs: `--help` must not wait for torch and the compiler.
COMMANDS = {
    "demo": ("fa4.demo", "demo_main"),
    "doctor": ("fa4.doctor", "doctor_main"),
    "inspect": ("fa4.profile", "inspect_main"),
    "profile": ("fa4.profile", "profile_main"),
    "verify": ("fa4.verify.command", "verify_main"),
}

USAGE = """\
usage: fa4 COMMAND [options]        (or python -m fa4 COMMAND)

  demo      compile the forward kernel, run it on random data, compare with float32
  doctor    versions, GPUs, toolchain, and what will run where
  inspect   what the compiler made of each warp role: instructions, registers, memory
  profile   what each warp role waits for: emulated, recorded on a GPU, or sampled by ncu
  verify    climb the ladder of evidence with every kernel: compile, emulate, schedules, Hopper

`fa4 COMMAND --help` lists the options of a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 fine, 1 the command found a fault, 2 misuse."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if arguments == ["--version"]:
        print(f"fa4 {__version__}")
        return 0
    if not arguments or arguments[0] not in COMMANDS:
        named = f"unknown command {arguments[0]!r}" if arguments else "no command"
        print(f"fa4: {named}\n\n{USAGE}", file=sys.stderr)
        return 2
    module, function = COMMANDS[arguments[0]]
    return getattr(import_module(module), function)(arguments[1:])
