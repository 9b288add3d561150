"""The SQLite store beyond the contract: durability, several processes, refusal of newer files."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    Change,
    ChangeKind,
    StoreIncompatible,
    StoreUnavailable,
    UnknownStore,
)
from anabranch.metadata.open import open_store
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.runtime.clock import SystemClock

_WRITER = """
import asyncio, sys
from pathlib import Path
from anabranch.metadata.interface import ANY
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.runtime.clock import SystemClock

async def main():
    store = SqliteStore(Path(sys.argv[1]), SystemClock())
    await store.open()
    session = await store.open_session(10_000)
    await store.put(f"/live/{sys.argv[2]}", b"", expected=ANY, session=session)
    async def write(lane):
        for i in range(100_000):
            await store.put(f"/kept/{sys.argv[2]}-{lane}-{i}", b"v", expected=ANY)
            print(f"{lane}-{i}", flush=True)
    await asyncio.gather(*(write(lane) for lane in range(4)))

asyncio.run(main())
"""


def _store(folder: Path) -> SqliteStore:
    return SqliteStore(folder, SystemClock())


def _start_writer(folder: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _WRITER, str(folder), name], stdout=subprocess.PIPE, text=True)


def _kill_after(writer: subprocess.Popen[str], lines: int) -> list[str]:
    """SIGKILL after this many acknowledged writes; returns what the process had printed by then."""
    assert writer.stdout is not None
    acknowledged = [writer.stdout.readline().strip() for _ in range(lines)]
    writer.send_signal(signal.SIGKILL)
    acknowledged += [line.strip() for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    writer.wait()
    writer.stdout.close()
    return acknowledged


async def test_acknowledged_writes_survive_sigkill_and_session_keys_do_not(tmp_path: Path) -> None:
    expected: set[str] = set()
    for round_ in range(3):
        acknowledged = _kill_after(_start_writer(tmp_path, str(round_)), 40 + 30 * round_)
        assert len(acknowledged) >= 40 + 30 * round_
        expected |= {f"/kept/{round_}-{line}" for line in acknowledged}
        async with _store(tmp_path) as store:
            found = {key async for key, _ in store.scan("/kept")}
            assert expected <= found
            assert await store.children("/live") == []
    with sqlite3.connect(tmp_path / "metadata.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_session_lives_with_its_process(tmp_path: Path) -> None:
    writer = _start_writer(tmp_path, "other")
    assert writer.stdout is not None
    writer.stdout.readline()
    async with _store(tmp_path) as store:
        assert await store.children("/live") == ["other"]
        watch = store.watch("/live")
        _kill_after(writer, 1)
        assert await asyncio.wait_for(anext(watch), 5) == Change(ChangeKind.DELETED, "/live/other")
        assert await store.children("/live") == []


async def test_two_stores_on_one_directory_see_each_other(tmp_path: Path) -> None:
    async with _store(tmp_path) as one, _store(tmp_path) as two:
        watch = two.watch("/shared")
        version = await one.put("/shared/a", b"1", expected=ABSENT)
        found = await two.get("/shared/a")
        assert found is not None and (found.value, found.version) == (b"1", version)
        assert await asyncio.wait_for(anext(watch), 5) == Change(ChangeKind.CREATED, "/shared/a")
        counts = await asyncio.gather(
            *(s.put(f"/n/{i}", b"", expected=ABSENT) for i in range(200) for s in [(one, two)[i % 2]])
        )
        assert len(set(counts)) == 200


async def test_reopen_keeps_values_versions_and_times(tmp_path: Path) -> None:
    async with _store(tmp_path) as store:
        version = await store.put("/a", b"1", expected=ABSENT)
        before = await store.get("/a")
    async with _store(tmp_path) as store:
        assert await store.get("/a") == before
        assert await store.put("/a", b"2", expected=version) > version


async def test_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    async with _store(tmp_path) as store:
        await store.put("/a", b"1", expected=ABSENT)
    db = sqlite3.connect(tmp_path / "metadata.db")
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreIncompatible, match="99"):
        await _store(tmp_path).open()
    db = sqlite3.connect(tmp_path / "metadata.db")
    assert db.execute("PRAGMA user_version").fetchone() == (99,)
    db.close()


async def test_damaged_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreUnavailable, match="cannot open metadata"):
        await _store(tmp_path).open()


async def test_long_use_does_not_let_the_log_grow(tmp_path: Path) -> None:
    async with _store(tmp_path) as store:
        for _ in range(4):
            await asyncio.gather(*(store.put(f"/big/{i}", b"x" * 100_000, expected=ANY) for i in range(100)))
        assert (tmp_path / "metadata.db-wal").stat().st_size < 32 * 1024 * 1024
        assert len(await store.children("/big")) == 100


async def test_stuck_lock_holder_fails_writes_until_released(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path, SystemClock(), lock_wait_ms_max=50) as store:
        with (tmp_path / "writer.lock").open("r+") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(StoreUnavailable, match="another process has held"):
                await asyncio.wait_for(store.put("/a", b"", expected=ABSENT), 5)
            assert await store.get("/a") is None
        await store.put("/a", b"", expected=ABSENT)


class WildClock(SystemClock):
    """Returns once a time beyond the range of SQLite integers."""

    def __init__(self) -> None:
        self.wild = False

    def now_ms(self) -> int:
        wild, self.wild = self.wild, False
        return 1 << 70 if wild else super().now_ms()


async def test_unexpected_writer_error_reaches_the_caller_only(tmp_path: Path) -> None:
    clock = WildClock()
    async with SqliteStore(tmp_path, clock) as store:
        clock.wild = True
        with pytest.raises(StoreUnavailable) as caught:
            await asyncio.wait_for(store.put("/a", b"", expected=ABSENT), 5)
        assert isinstance(caught.value.__cause__, OverflowError)
        await store.put("/a", b"", expected=ABSENT)


_FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from anabranch.metadata.interface import ABSENT, StoreUnavailable
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.runtime.clock import SystemClock

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    async with SqliteStore(Path(sys.argv[1]), SystemClock()) as store:
        await store.put("/a", b"1", expected=ABSENT)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        try:
            await store.put("/big", b"x" * 900_000, expected=ABSENT)
        except StoreUnavailable as error:
            assert error.retryable
        else:
            raise SystemExit("the full disk went unnoticed")
        assert (await store.get("/a")).value == b"1"
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await store.put("/big", b"x" * 900_000, expected=ABSENT)
    async with SqliteStore(Path(sys.argv[1]), SystemClock()) as store:
        assert len((await store.get("/big")).value) == 900_000
asyncio.run(main())
"""


def test_full_disk_is_an_error_and_service_resumes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _FULL, str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


async def test_urls(tmp_path: Path) -> None:
    clock = SystemClock()
    async with open_store("memory:", clock) as store:
        await store.put("/a", b"", expected=ABSENT)
    async with open_store(f"sqlite://{tmp_path}/x y%20", clock) as store:
        await store.put("/a", b"", expected=ABSENT)
    assert (tmp_path / "x y%20" / "metadata.db").exists()
    async with open_store(f"sqlite:///{tmp_path}/x y%20", clock) as store:
        assert await store.get("/a") is not None
    for url in ("redis://h:6379", "sqlite:", "sqlite:///", "nonsense", ""):
        with pytest.raises(UnknownStore, match="this release has memory: and sqlite:///DIR"):
            open_store(url, clock)
