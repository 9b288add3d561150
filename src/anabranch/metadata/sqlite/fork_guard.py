"""Releases in a forked child what belongs to the parent: locks, watches, database connections.

`O_CLOEXEC` applies only when the child executes another program. A plain fork shares open files, and with them the
locks that mark the parent as alive; so the child closes them at once.
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
    """Call `owner.after_fork()` in every child forked from now on, while `owner` exists."""
    _guarded.add(owner)


def abandon(thing: object) -> None:
    """Never finalise it: closing a SQLite connection in a forked child can corrupt the parent's file."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _in_child() -> None:
    for owner in tuple(_guarded):
        owner.after_fork()


os.register_at_fork(after_in_child=_in_child)
