"""A real browser: Debian's chromium, installed if that needs no confirmation (as root)."""

from __future__ import annotations

import os
import shutil

from tests.services import cache

NAMES = ("chromium", "google-chrome")


def obtain() -> str:
    """The program's path."""
    if (found := _found()) is not None:
        return found
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise cache.Unavailable("no chromium, and apt-get as root is needed to install it")
    with cache.alone("chromium", within_s=600):
        if _found() is None:
            cache.run(["apt-get", "update", "-q"], within_s=200)
            cache.run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"], within_s=400)
    if (found := _found()) is None:
        raise cache.Unavailable("chromium was installed and is not on the path")
    return found


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
