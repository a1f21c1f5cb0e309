"""`python -m fa4.profile CUBIN_OR_FOLDER ...`: instruction counts per loop of any cubin."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from fa4.profile.static import Analysis, analyse
from fa4.profile.text import classes_text, loops_text, resources_text, roles_text


def main(argv: list[str]) -> int:
    """Prints resources, roles and loops of every cubin named or found in a folder."""
    parser = argparse.ArgumentParser(prog="python -m fa4.profile", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="CUBIN_OR_FOLDER")
    parser.add_argument("--kernel", help="part of a kernel's name; default: the largest kernel")
    parser.add_argument("--classes", action="store_true", help="every instruction class per loop")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    args = parser.parse_args(argv)
    files = [file for path in args.paths for file in _cubins(path)]
    analyses = {str(file): analyse(file.read_bytes(), args.kernel) for file in files}
    if args.json:
        print(json.dumps({name: asdict(found) for name, found in analyses.items()}, indent=1))
        return 0
    for name, found in analyses.items():
        print(_text(name, found, args.classes))
    return 0


def _cubins(path: Path) -> list[Path]:
    found = sorted(path.glob("**/*.cubin")) if path.is_dir() else [path]
    if not found or not found[0].is_file():
        raise SystemExit(f"no cubin at {path}: give a .cubin file or a folder that holds some")
    return found


def _text(name: str, analysis: Analysis, with_classes: bool) -> str:
    parts = [f"== {name}", resources_text(analysis.resources), roles_text(analysis)]
    parts.append(loops_text(analysis))
    if with_classes:
        parts += [f"{loop.start:#x} {classes_text(loop)}" for loop in analysis.loops]
    return "\n".join([*parts, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
