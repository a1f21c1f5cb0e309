"""Replace an attribute for a while and put back exactly what was there."""

import contextlib
import os
from collections.abc import Callable, Iterator
from threading import RLock

PROCESS_STATE = RLock()
"""Held by whoever changes or depends on what the compiler keeps once per process: its target, its
patches, where what is loaded gets bound. Sessions that a user opens hold it only to open and close.
"""

_MISSING = object()


@contextlib.contextmanager
def replaced(owner: object, name: str, make: Callable[[object], object]) -> Iterator[None]:
    """Set `owner.name` to `make(original)`, and put the original back at the end."""
    own = vars(owner).get(name, _MISSING)
    setattr(owner, name, make(getattr(owner, name)))
    try:
        yield
    finally:
        if own is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable of this process for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
