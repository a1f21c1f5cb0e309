"""`python -m bench COMMAND [options]`; `--help` lists the commands, static is the default."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {  # imported when asked for: what one needs, the others may lack
    "static": ("bench.static", "instructions, registers and spills beside flash-attn-4 (default)"),
    "exp2-share": ("bench.exp2_share", "what every share of emulated exponentials compiles to"),
    "mutants": ("bench.mutants.command", "kernels without one synchronising instruction, emulated"),
    "overhead": ("bench.overhead", "the host's time per call"),
    "hopper": ("bench.hopper.command", "the forward beside its peers, on a Hopper GPU"),
    "hopper-backward": ("bench.hopper.backward", "the same of the backward"),
    "techniques": ("bench.hopper.techniques", "what each switch of the plans is worth there"),
    "pipes": ("bench.hopper.pipes", "what bounds the cells below their aim there, by ncu"),
    "fuzz": ("bench.hopper.fuzz", "random problems there against the reference"),
    "sanitize": ("bench.hopper.sanitize", "small problems there under compute-sanitizer"),
    "on-hopper": ("bench.on_hopper.command", "Blackwell's kernels there"),
}


def main(argv: list[str]) -> int:
    """Run one command; `static` when none is named."""
    if argv[:1] in (["-h"], ["--help"]):
        print(usage())
        return 0
    named = bool(argv) and not argv[0].startswith("-")
    name, rest = (argv[0], argv[1:]) if named else ("static", argv)
    if name not in COMMANDS:
        print(f"unknown command {name!r}\n{usage()}", file=sys.stderr)
        return 2
    return import_module(COMMANDS[name][0]).main(rest)


def usage() -> str:
    """The commands, a line each."""
    lines = [f"  {name:16} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["python -m bench COMMAND [options]; COMMAND --help has those", *lines])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
