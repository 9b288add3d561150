"""What a forked child must not inherit: locks, watches and database connections stay the parent's alone.

`O_CLOEXEC` only helps when the child becomes another program. A plain fork shares open files, and with them the locks
that say "this process lives"; so the child closes them at once. Knows nothing of what is closed.
"""

from __future__ import annotations

import ctypes
import os
from typing import Protocol
from weakref import WeakSet


class Guarded(Protocol):
    def after_fork(self) -> None:
        """Called in the child, before anything else runs there."""


_guarded: WeakSet[Guarded] = WeakSet()


def guard(owner: Guarded) -> None:
    """Tell `owner` in every child forked from now on, while it lives."""
    _guarded.add(owner)


def abandon(thing: object) -> None:
    """Never finalise it: closing a SQLite connection in a forked child can damage the parent's file."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _in_child() -> None:
    for owner in tuple(_guarded):
        owner.after_fork()


os.register_at_fork(after_in_child=_in_child)
