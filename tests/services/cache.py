"""Cache of downloaded and built servers, kept between runs.

An entry is a directory named after its recipe, so another version is another entry. It is created by a rename, so it is
complete or missing. A lock file makes a second builder wait for the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

BUILDS = Path(__file__).with_name("builds")


class Unavailable(Exception):
    """The server cannot be installed on this machine; the text says why."""


def folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "anabranch" / "services"


def once(name: str, recipe: Path, build: Callable[[Path], None], *, within_s: float) -> Path:
    """The entry for `recipe`; `build` fills an empty directory if there is none yet."""
    entry = _entry(name, recipe)
    if entry.is_dir():
        return entry
    entry.parent.mkdir(parents=True, exist_ok=True)
    with _alone(entry.with_suffix(".lock"), within_s):
        if entry.is_dir():
            return entry
        fresh = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", dir=entry.parent))
        try:
            build(fresh)
            fresh.rename(entry)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return entry


def has(name: str, recipe: Path) -> bool:
    """True if `once` returns it without building."""
    return _entry(name, recipe).is_dir()


def _entry(name: str, recipe: Path) -> Path:
    return folder() / f"{name}-{hashlib.sha256(recipe.read_bytes()).hexdigest()[:12]}"


@contextmanager
def alone(name: str, *, within_s: float) -> Iterator[None]:
    """Exclusive among all processes of this user."""
    folder().mkdir(parents=True, exist_ok=True)
    with _alone(folder() / f"{name}.lock", within_s):
        yield


def run(command: Sequence[str | Path], *, cwd: Path | None = None, within_s: float) -> str:
    """Run a package manager; a failure means that the server is not available."""
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} did not end within {within_s:.0f} s") from error
    if done.returncode != 0:
        raise Unavailable(f"{command[0]} failed: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout


@contextmanager
def _alone(path: Path, within_s: float) -> Iterator[None]:
    deadline = time.monotonic() + within_s
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(f"another process still holds {path}") from None
                time.sleep(0.1)
        yield
