"""Public names of a package that load on first use, so that importing it stays cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(package: str, home: Mapping[str, str]) -> Callable[[str], object]:
    """A package's `__getattr__`; `home` maps a name to the submodule that defines it."""

    def find(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{home[name]}", package), name)

    return find
