"""The extended write-ahead log: after a kill at any point, no committed write is lost."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.metadata.sqlite.schema import connect
from anabranch.metadata.sqlite.wal_file import WalFile

KEPT = 256 << 10


class Database:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = connect(folder / "a.db")
        self.db.execute("CREATE TABLE t(n INTEGER, value BLOB)")
        self.wal = WalFile(f"{folder / 'a.db'}-wal", KEPT)
        self.written = 0

    def write(self, size: int) -> None:
        self.db.execute("INSERT INTO t VALUES(?, ?)", (self.written, bytes(size)))
        self.written += 1

    def checkpoint(self) -> None:
        self.db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    @property
    def wal_bytes(self) -> int:
        return (self.folder / "a.db-wal").stat().st_size

    def found_after_a_kill(self) -> list[int]:
        """What another process reads from the files in their present state."""
        with tempfile.TemporaryDirectory() as place:
            for name in ("a.db", "a.db-wal"):
                shutil.copy(self.folder / name, place)
            db = sqlite3.connect(Path(place) / "a.db")
            try:
                assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                return [number for (number,) in db.execute("SELECT n FROM t ORDER BY n")]
            finally:
                db.close()

    def close(self) -> None:
        self.wal.close()
        self.db.close()


@contextmanager
def database() -> Iterator[Database]:
    with tempfile.TemporaryDirectory() as place:
        one = Database(Path(place))
        try:
            yield one
        finally:
            one.close()


steps = st.lists(st.sampled_from(["extend", "checkpoint", "kill"]) | st.integers(0, 60_000), max_size=25)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_nothing_committed_is_lost(plan: list[str | int]) -> None:
    with database() as one:
        for step in plan:
            match step:
                case "extend":
                    one.wal.extend(one.db)
                    assert one.wal_bytes >= KEPT
                case "checkpoint":
                    one.checkpoint()
                case "kill":
                    assert one.found_after_a_kill() == list(range(one.written))
                case int(size):
                    one.write(size)
        assert one.found_after_a_kill() == list(range(one.written))


def test_log_length_is_its_valid_part_not_the_file() -> None:
    with database() as one:
        one.wal.extend(one.db)
        assert not one.wal.is_long()
        while not one.wal.is_long():
            one.write(4000)
            assert one.written < 200
        assert one.written > 20
        one.checkpoint()
        one.write(1)
        assert not one.wal.is_long()
        assert one.wal_bytes >= KEPT, "kept, to be written over"


def test_extended_log_does_not_grow() -> None:
    with database() as one:
        one.wal.extend(one.db)
        sizes = set()
        for _ in range(100):
            one.write(4000)
            if one.wal.is_long():
                one.checkpoint()
            sizes.add(one.wal_bytes)
        assert max(sizes) < KEPT + (64 << 10)


def test_extending_the_log_blocks_other_writers() -> None:
    """A holder of the database's own lock, such as a shell, is waited for."""
    with database() as one:
        one.write(10)
        other = sqlite3.connect(one.folder / "a.db", timeout=0, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        one.db.execute("PRAGMA busy_timeout=0")
        before = one.wal_bytes
        try:
            one.wal.extend(one.db)
        except sqlite3.OperationalError as error:
            assert "locked" in str(error)
        else:
            raise AssertionError("wrote beside another writer")
        assert one.wal_bytes == before
        other.execute("COMMIT")
        other.close()
