"""`python -m bench [static | exp2-share] [options]`."""

from __future__ import annotations

import sys

from bench import exp2_share, static

COMMANDS = {"static": static.main, "exp2-share": exp2_share.main}


def main(argv: list[str]) -> int:
    """Run one comparison; `static` when none is named."""
    name, rest = (argv[0], argv[1:]) if argv and argv[0] in COMMANDS else ("static", argv)
    return COMMANDS[name](rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
