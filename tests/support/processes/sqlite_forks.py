"""Processes on one SQLite metadata store, forked from a warm process so that each starts in milliseconds.

    python -m tests.support.processes.sqlite_forks DIR      reads "JOB NAME" lines, forks, answers with the pid

A job writes lines to DIR-NAME.log; what it wrote survives its death at any instant. The warm process has no threads and
no store open, so its children begin clean.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from anabranch.metadata.interface import ANY, SessionLost, StoreUnavailable
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.runtime.clock import SystemClock

Say = Callable[[str], None]


async def write(folder: Path, name: str, say: Say) -> None:
    """Four concurrent series of puts, each printed when acknowledged; and an ephemeral key."""
    async with SqliteStore(folder, SystemClock()) as store:
        session = await store.open_session(60_000)
        await store.put(f"/live/{name}", b"", expected=ANY, session=session)

        async def lane(number: int) -> None:
            for i in range(1_000_000):
                await store.put(f"/kept/{name}-{number}-{i}", b"v" * (i % 700), expected=ANY)
                say(f"/kept/{name}-{number}-{i}")

        await asyncio.gather(*map(lane, range(4)))


async def hold(folder: Path, name: str, say: Say, ttl_ms: int) -> None:
    """An ephemeral key, written repeatedly until the session is lost."""
    async with SqliteStore(folder, SystemClock()) as store:
        session = await store.open_session(ttl_ms)
        session.listen(lambda event: say(f"{event} {session.valid_until} {time.monotonic()}"))
        while True:
            try:
                await store.put(f"/live/{name}", b"", expected=ANY, session=session)
                say(f"put {session.valid_until} {time.monotonic()}")
                await asyncio.sleep(0.01)
            except SessionLost:
                break
        try:
            await store.put(f"/live/{name}", b"again", expected=ANY, session=session)
        except SessionLost:
            say("refused")
        await asyncio.Event().wait()


async def fork(folder: Path, name: str, say: Say) -> None:
    """A child that outlives its parent, and with it every descriptor the parent had."""
    store = SqliteStore(folder, SystemClock())
    await store.open()
    session = await store.open_session(60_000)
    await store.put(f"/live/{name}", b"", expected=ANY, session=session)
    pid = os.fork()
    if pid == 0:
        try:
            await store.put("/forked", b"", expected=ANY)
        except StoreUnavailable as error:
            say(f"child {error}")
        await store.close()
        say(f"inherited {sorted(_open_paths(folder))}")
        signal.pause()
    say(f"forked {pid}")
    await asyncio.Event().wait()


def _open_paths(folder: Path) -> list[str]:
    """Files of the store open in this process, but those of SQLite (they must not be closed in a child)."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if "inotify" in target or (target.startswith(str(folder)) and "metadata.db" not in target):
            found.append(target)
    return [path for path in found if not path.endswith(".log")]


async def come(folder: Path, name: str, say: Say) -> None:
    async with SqliteStore(folder, SystemClock()) as store:
        await store.put(f"/came/{name}", b"", expected=ANY)
        say("done")


Job = Callable[[Path, str, Say], Coroutine[Any, Any, None]]
JOBS: dict[str, Job] = {
    "write": write,
    "hold": partial(hold, ttl_ms=3_000),  # others end it when it is silent for so long: more than a busy machine takes
    "hold-alone": partial(hold, ttl_ms=500),
    "fork": fork,
    "come": come,
}


def main(folder: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead children vanish by themselves
    for line in sys.stdin:
        job, name = line.split()
        pid = os.fork()
        if pid == 0:
            run(folder, job, name)
        print(pid, flush=True)


def run(folder: Path, job: str, name: str) -> None:
    """In the forked process; never returns."""
    out = os.open(log_of(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        asyncio.run(JOBS[job](folder, name, lambda text: _line(out, text)))
    except BaseException as error:
        _line(out, f"failed {error!r}")
    finally:
        os._exit(0)


def _line(out: int, text: str) -> None:
    os.write(out, text.encode() + b"\n")


def log_of(folder: Path, name: str) -> Path:
    return folder.with_name(f"{folder.name}-{name}.log")


class Forks:
    """The test's side. Everything it started is killed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pids: list[int] = []

    def __enter__(self) -> Forks:
        command = [sys.executable, "-m", "tests.support.processes.sqlite_forks", str(self.folder)]
        self._warm = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._pids:
            self.kill(pid)
        with self._warm:
            self._warm.terminate()

    def start(self, job: str, name: str) -> int:
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(f"{job} {name}\n")
        self._warm.stdin.flush()
        pid = int(self._warm.stdout.readline())
        self._pids.append(pid)
        return pid

    def kill(self, pid: int, sign: int = signal.SIGKILL) -> None:
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            return

    def said(self, name: str) -> list[str]:
        """Complete lines only."""
        log = log_of(self.folder, name)
        return log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []

    async def wait_said(self, name: str, start: str, count: int = 1) -> list[str]:
        async with asyncio.timeout(30):
            while len(found := [line for line in self.said(name) if line.startswith(start)]) < count:
                assert not any(line.startswith("failed") for line in self.said(name)), self.said(name)
                await asyncio.sleep(0.005)
        return found

    def track(self, pid: int) -> None:
        self._pids.append(pid)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
