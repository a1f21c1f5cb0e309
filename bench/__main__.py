"""`python -m bench COMMAND [options]`: the commands are below, static is the default."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {  # imported when asked for: what one needs, the others may lack
    "static": "bench.static",
    "exp2-share": "bench.exp2_share",
    "hopper": "bench.hopper.command",
    "techniques": "bench.hopper.techniques",
    "pipes": "bench.hopper.pipes",
    "hopper-backward": "bench.hopper.backward",
    "overhead": "bench.overhead",
    "fuzz": "bench.hopper.fuzz",
    "sanitize": "bench.hopper.sanitize",
    "on-hopper": "bench.on_hopper.command",
    "mutants": "bench.mutants.command",
}


def main(argv: list[str]) -> int:
    """Run one comparison; `static` when none is named."""
    name, rest = (argv[0], argv[1:]) if argv and argv[0] in COMMANDS else ("static", argv)
    return import_module(COMMANDS[name]).main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
