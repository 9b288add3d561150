"""The SQLite tables of the embedded metadata store and the statements on them. Synchronous; knows no threads or locks.

    node(parent, name, …)   one row per key; "/a/b" is parent "/a", name "b" (with rowid: files stay a third as big)
    event(seq, kind, path)  every change, in commit order; its seq is the key's new version, so versions never return
    session(id)             who may own ephemeral keys

Writes assume that the caller holds the writer lock and an open transaction. Every write decides before its first
statement that changes something, so a refused one leaves the rest of its group untouched.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from anabranch.metadata.port import (
    Change,
    ChangeKind,
    Expected,
    SessionLost,
    StoreIncompatible,
    Version,
    Versioned,
    decide_delete,
    decide_put,
)

FORMAT = 1
_APPLICATION_ID = 0x616E6162  # "anab"
_EVENTS_KEPT = 10_000
_BELOW = "/"
_PAST_BELOW = "0"  # the character after "/": [tree + "/", tree + "0") is exactly what lies below a tree

_SCHEMA = """
CREATE TABLE node(
  id INTEGER PRIMARY KEY, parent TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
  created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, session INTEGER, value BLOB NOT NULL,
  UNIQUE(parent, name));
CREATE INDEX node_session ON node(session) WHERE session IS NOT NULL;
CREATE TABLE event(seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, path TEXT NOT NULL);
CREATE TABLE session(id INTEGER PRIMARY KEY AUTOINCREMENT, created_ms INTEGER NOT NULL);
"""

Row = tuple[bytes, int, int, int, int | None]


def connect(path: Path) -> sqlite3.Connection:
    """Open with the settings that all connections need. Call it under the writer lock: opening may recover the WAL."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")  # checkpoints only under the writer lock: see sqlite_writer
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA mmap_size=0")
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables in a new file; refuse a file that is newer than this release, or not ours."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    if found > FORMAT or (found and owner != _APPLICATION_ID):
        raise StoreIncompatible(f"metadata format {found} is newer than {FORMAT}, the newest this release knows")
    if found == 0:
        connection.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id={_APPLICATION_ID}; PRAGMA user_version={FORMAT}; COMMIT;"
        )


def split(key: str) -> tuple[str, str]:
    parent, _, name = key.rpartition("/")
    return parent, name


def page_reader(
    low: str, end: str, after: tuple[str, str], rows_max: int
) -> Callable[[Reading], list[tuple[str, str, Versioned]]]:
    return lambda table: table.page(low, end, after, rows_max)


def _versioned(row: Row) -> Versioned:
    value, version, created_ms, modified_ms, session = row
    return Versioned(value, version, created_ms, modified_ms, session is not None)


class Reading:
    """Read statements. Each call is one short read transaction, so a reader never holds back a checkpoint for long."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def get(self, key: str) -> Versioned | None:
        row = self._db.execute(
            "SELECT value, version, created_ms, modified_ms, session FROM node WHERE parent=? AND name=?", split(key)
        ).fetchone()
        return None if row is None else _versioned(row)

    def children(self, tree: str) -> list[str]:
        names = {name for (name,) in self._db.execute("SELECT name FROM node WHERE parent=?", (tree,))}
        names.update(self._implied(tree))
        return sorted(names)

    def _implied(self, tree: str) -> Iterator[str]:
        """Names that exist only because something lies below them: at most two index steps for each."""
        low, end = tree + _BELOW, tree + _PAST_BELOW
        while True:
            row = self._db.execute(
                "SELECT parent FROM node WHERE parent>? AND parent<? ORDER BY parent LIMIT 1", (low, end)
            ).fetchone()
            if row is None:
                return
            name, deeper, _ = row[0][len(tree) + 1 :].partition("/")
            yield name
            low = f"{tree}/{name}{_PAST_BELOW}" if deeper else row[0]

    def page(self, low: str, end: str, after: tuple[str, str], rows_max: int) -> list[tuple[str, str, Versioned]]:
        """Rows with low <= parent < end that come after (parent, name), in that order."""
        rows = self._db.execute(
            "SELECT parent, name, value, version, created_ms, modified_ms, session FROM node"
            " WHERE parent>=? AND parent<? AND (parent, name)>(?, ?) ORDER BY parent, name LIMIT ?",
            (low, end, *after, rows_max),
        )
        return [(row[0], row[1], _versioned(row[2:])) for row in rows]


def scan_ranges(tree: str) -> list[tuple[str, str]]:
    """Ranges of `parent` that hold everything below a tree: its direct children first, then the rest."""
    return [(tree, tree + "\x01"), (tree + _BELOW, tree + _PAST_BELOW)]


class Writing(Reading):
    """Write statements, inside a transaction of the caller."""

    def put(self, key: str, value: bytes, expected: Expected, session: int | None, now_ms: int) -> Version:
        parent, name = split(key)
        row = self._db.execute("SELECT id, version FROM node WHERE parent=? AND name=?", (parent, name)).fetchone()
        decide_put(key, expected, row[1] if row else None)
        if session is not None and not self.has_session(session):
            raise SessionLost("the session has ended")
        version = self._record(ChangeKind.MODIFIED if row else ChangeKind.CREATED, key)
        if row:
            self._db.execute(
                "UPDATE node SET version=?, modified_ms=?, session=?, value=? WHERE id=?",
                (version, now_ms, session, value, row[0]),
            )
        else:
            self._db.execute(
                "INSERT INTO node(parent, name, version, created_ms, modified_ms, session, value)"
                " VALUES(?,?,?,?,?,?,?)",
                (parent, name, version, now_ms, now_ms, session, value),
            )
        return version

    def delete(self, key: str, expected: Expected) -> None:
        row = self._db.execute("SELECT id, version FROM node WHERE parent=? AND name=?", split(key)).fetchone()
        decide_delete(key, expected, row[1] if row else None)
        self._record(ChangeKind.DELETED, key)
        self._db.execute("DELETE FROM node WHERE id=?", (row[0],))

    def create_session(self, now_ms: int) -> int:
        session = self._db.execute("INSERT INTO session(created_ms) VALUES(?)", (now_ms,)).lastrowid
        assert session is not None
        return session

    def has_session(self, session: int) -> bool:
        return self._db.execute("SELECT 1 FROM session WHERE id=?", (session,)).fetchone() is not None

    def session_ids(self) -> list[int]:
        return [session for (session,) in self._db.execute("SELECT id FROM session")]

    def end_session(self, session: int) -> None:
        """Delete the session and every key that hung on it. Safe to repeat."""
        owned = self._db.execute("SELECT id, parent, name FROM node WHERE session=? ORDER BY id", (session,)).fetchall()
        for node, parent, name in owned:
            self._record(ChangeKind.DELETED, f"{parent}/{name}")
            self._db.execute("DELETE FROM node WHERE id=?", (node,))
        self._db.execute("DELETE FROM session WHERE id=?", (session,))

    def last_event(self) -> int:
        (seq,) = self._db.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()
        return int(seq)

    def events_after(self, seq: int) -> tuple[int, list[Change]]:
        """(last seq, changes since `seq`); one INVALIDATED when some of them were trimmed already."""
        rows = self._db.execute("SELECT seq, kind, path FROM event WHERE seq>? ORDER BY seq", (seq,)).fetchall()
        if not rows:
            return seq, []
        if rows[0][0] != seq + 1:
            return rows[-1][0], [Change(ChangeKind.INVALIDATED, "/")]
        return rows[-1][0], [Change(ChangeKind(kind), path) for _, kind, path in rows]

    def trim_events(self) -> None:
        self._db.execute("DELETE FROM event WHERE seq<=(SELECT max(seq) FROM event)-?", (_EVENTS_KEPT,))

    def _record(self, kind: ChangeKind, path: str) -> Version:
        seq = self._db.execute("INSERT INTO event(kind, path) VALUES(?,?)", (kind.value, path)).lastrowid
        assert seq is not None
        return seq
