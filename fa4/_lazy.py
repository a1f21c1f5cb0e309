"""Public names of a package that load on first use, so that importing it stays cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(package: str, home: Mapping[str, str]) -> Callable[[str], object]:
    """A package's `__getattr__`, which Python asks once per name: what it finds stays there.

    `home` maps a name to the submodule that defines it; a submodule's name to itself.
    """

    def find(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f".{home[name]}", package)
        value = module if name == home[name] else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return find
