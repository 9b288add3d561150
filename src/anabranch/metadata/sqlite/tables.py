"""SQL statements on keys and sessions of the SQLite store. Synchronous; knows no threads or locks.

Writes require the writer lock and an open transaction. A refused write changes nothing, so the rest of its group is not
affected.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    RESERVED,
    ChangeKind,
    Expected,
    Item,
    Rule,
    SessionLost,
    Version,
    Versioned,
    check_key,
    decide_delete,
    decide_put,
)
from anabranch.metadata.sqlite.event_log import EncodedChange, EventLog, encode_change
from anabranch.model.errors import BadRequest

REPORTED_KEYS_MAX = 1000  # a bulk step with more keys is reported as one INVALIDATED of their common tree
PUT_ALL_MIN = 4
ROWS_PER_STATEMENT = 500
PARAMETERS_PER_ROW = 6  # the most
STATEMENTS_CACHED = 64  # most parts have the same number of rows
_BELOW = "/"
_PAST_BELOW = "0"  # the character after "/": the range [tree + "/", tree + "0") is everything below a tree

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1  # the range of a column

_INSERT = (
    "INSERT INTO node(parent, name, version, created_ms, modified_ms, session, value)"
    " VALUES(?,?,?,?,?,?,?) ON CONFLICT DO NOTHING"
)
_UPDATE = "UPDATE node SET version=?, modified_ms=?, session=?, value=? WHERE parent=? AND name=?"
_UPDATE_IF = f"{_UPDATE} AND version=?"
_UPDATE_PLAIN = (
    "UPDATE node SET version=?, modified_ms=?, value=? WHERE parent=? AND name=? AND version=? AND session IS NULL"
)

T = TypeVar("T")

KEY_CHARS_CACHED = 256  # longer keys are not cached, so that the memory has a bound
KEYS_CACHED = 8192

KeyColumns = tuple[str, str, EncodedChange]
"""parent, name, and the change that a put by version makes. Plain tuples, because this is the hot path."""


@lru_cache(KEYS_CACHED)
def key_columns(key: str) -> KeyColumns:
    """The columns of a key, cached because keys are written repeatedly. Raises BadKey."""
    check_key(key)
    parent, _, name = key.rpartition("/")
    return parent, name, encode_change(ChangeKind.MODIFIED, key)


PlainPut = tuple[Any, KeyColumns, bytes, Version]
"""Context, columns, value, expected version: a put by version without session, the most frequent write."""

Row = tuple[bytes, int, int, int, int | None]


def split(key: str) -> tuple[str, str]:
    parent, _, name = key.rpartition("/")
    return parent, name


def page_reader(
    after: tuple[str, str], end: str, rows_max: int
) -> Callable[[ReadTables], list[tuple[str, str, Versioned]]]:
    return lambda table: table.page(after, end, rows_max)


def _versioned(row: Row) -> Versioned:
    value, version, created_ms, modified_ms, session = row
    return Versioned(value, version, created_ms, modified_ms, session is not None)


class ReadTables:
    """Read statements. Each call is one short read transaction, so a reader never delays a checkpoint for long."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def get(self, key: str) -> Versioned | None:
        row = self._db.execute(
            "SELECT value, version, created_ms, modified_ms, session FROM node WHERE parent=? AND name=?", split(key)
        ).fetchone()
        return None if row is None else _versioned(row)

    def count(self) -> int:
        """From the index, so values are not read: 1,000,000 keys in about 0.05 s."""
        (count,) = self._db.execute("SELECT count(*) FROM node").fetchone()
        return int(count)

    def children(self, tree: str) -> list[str]:
        names = {name for (name,) in self._db.execute("SELECT name FROM node WHERE parent=?", (tree,))}
        names.update(self._implied(tree))
        return sorted(names)

    def _implied(self, tree: str) -> Iterator[str]:
        """Names that only deeper keys imply, with at most two index steps for each."""
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

    def page(self, after: tuple[str, str], end: str, rows_max: int) -> list[tuple[str, str, Versioned]]:
        """Rows with parent < end that come after (parent, name), in that order.

        Two plain searches, because for one over pairs SQLite steps over all rows of earlier pages.
        """
        columns = "SELECT parent, name, value, version, created_ms, modified_ms, session FROM node"
        rows = self._db.execute(
            f"{columns} WHERE parent=? AND name>? ORDER BY name LIMIT ?", (*after, rows_max)
        ).fetchall()
        if len(rows) < rows_max:
            rows += self._db.execute(
                f"{columns} WHERE parent>? AND parent<? ORDER BY parent, name LIMIT ?",
                (after[0], end, rows_max - len(rows)),
            )
        return [(row[0], row[1], _versioned(row[2:])) for row in rows]


def scan_ranges(tree: str) -> list[tuple[str, str]]:
    """Ranges of `parent` that contain everything below a tree: its direct children first, then the rest."""
    return [(tree, tree + "\x01"), (tree + _BELOW, tree + _PAST_BELOW)]


class WriteTables(ReadTables):
    """Write statements, between `begin` and `end` of one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._events = EventLog(connection)
        self._cursor = connection.cursor()  # one for all puts: creating one costs a tenth of a put
        parameters_max = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)  # of this build of SQLite
        self._rows_max = min(ROWS_PER_STATEMENT, parameters_max // PARAMETERS_PER_ROW)
        self._base = 0
        self._changes: list[EncodedChange] = []

    def begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._base = self._events.last()
        self._changes = []

    def end(self) -> tuple[int, list[EncodedChange], bytes]:
        """Store the changes. Returns the number before the first, the changes, and the notification."""
        message = self._events.append(self._base + 1, self._changes) if self._changes else b""
        return self._base, self._changes, message

    def put(self, key: str, value: bytes, expected: Expected, session: int | None, now_ms: int) -> Version:
        parent, _, name = key.rpartition("/")
        version = self._base + len(self._changes) + 1
        if session is not None and not self.has_session(session):
            raise SessionLost("the session has ended")
        if expected is not ABSENT and self._update(parent, name, value, expected, session, now_ms, version):
            self._changes.append(encode_change(ChangeKind.MODIFIED, key))
            return version
        if expected is ABSENT or expected is ANY:
            if self._cursor.execute(_INSERT, (parent, name, version, now_ms, now_ms, session, value)).rowcount:
                self._changes.append(encode_change(ChangeKind.CREATED, key))
                return version
        decide_put(key, expected, self._version(parent, name))
        raise AssertionError(f"{key}: the write failed without a reason")

    def put_all(self, puts: Sequence[PlainPut], now_ms: int) -> Version | None:
        """Put all or none. Returns the new version of the first; the others follow consecutively."""
        if len(puts) < PUT_ALL_MIN:
            return None
        first = self._base + len(self._changes) + 1
        rows = [
            (version, now_ms, value, parent, name, expected)
            for version, (_, (parent, name, _), value, expected) in enumerate(puts, first)
        ]
        self._cursor.execute("SAVEPOINT puts")
        if self._cursor.executemany(_UPDATE_PLAIN, rows).rowcount < len(puts):
            self._cursor.execute("ROLLBACK TO puts")
            return None
        self._changes += [put[1][2] for put in puts]
        return first

    def _update(
        self, parent: str, name: str, value: bytes, expected: Expected, session: int | None, now_ms: int, version: int
    ) -> bool:
        if isinstance(expected, Rule):
            return self._cursor.execute(_UPDATE, (version, now_ms, session, value, parent, name)).rowcount > 0
        if not INT_MIN <= expected <= INT_MAX:
            return False
        if session is None:  # the common case: no session before or after, so no index to update
            given = (version, now_ms, value, parent, name, expected)
            if self._cursor.execute(_UPDATE_PLAIN, given).rowcount:
                return True
        return self._cursor.execute(_UPDATE_IF, (version, now_ms, session, value, parent, name, expected)).rowcount > 0

    def delete(self, key: str, expected: Expected) -> None:
        parent, name = split(key)
        decide_delete(key, expected, self._version(parent, name))
        self._db.execute("DELETE FROM node WHERE parent=? AND name=?", (parent, name))
        self._changes.append(encode_change(ChangeKind.DELETED, key))

    def write_over(self, items: Iterable[Item], preserve: bool, now_ms: int) -> None:
        """Many puts over present records; with `preserve`, versions and times are stored as given."""
        last = dict(items)
        if preserve and (highest := max((given.version for given in last.values()), default=0)) > self._base:
            raise BadRequest(f"version {highest} is above the floor given to raise_versions")
        self._report(last, ChangeKind.CREATED, ChangeKind.MODIFIED)
        version = self._base + len(self._changes)
        rows = [
            (*split(key), given.version, given.created_ms, given.modified_ms, given.value)
            if preserve
            else (*split(key), version, now_ms, now_ms, given.value)
            for key, given in last.items()
        ]
        for some in cut(rows, self._rows_max):
            self._db.execute(_write_over(len(some), preserve), list(chain.from_iterable(some)))

    def delete_all(self, keys: Iterable[str]) -> None:
        distinct = dict.fromkeys(keys)
        self._report(distinct, None, ChangeKind.DELETED)
        self._db.executemany("DELETE FROM node WHERE parent=? AND name=?", map(split, distinct))

    def raise_versions(self, floor: Version) -> None:
        if self._db.execute(
            "SELECT 1 FROM node WHERE NOT (parent='' AND name=?) AND parent<>? AND NOT (parent>=? AND parent<?)",
            (RESERVED[1:], RESERVED, RESERVED + _BELOW, RESERVED + _PAST_BELOW),
        ).fetchone():
            raise BadRequest("versions can be raised only in an empty store")
        if self._base + len(self._changes) < floor:
            self.end()
            self._events.raise_to(floor)
            self._base, self._changes = floor, []

    def create_session(self, now_ms: int, ttl_ms: int) -> int:
        session = self._db.execute(
            "INSERT INTO session(created_ms, ttl_ms, pid) VALUES(?,?,?)", (now_ms, ttl_ms, os.getpid())
        ).lastrowid
        assert session is not None
        return session

    def has_session(self, session: int) -> bool:
        return self._db.execute("SELECT 1 FROM session WHERE id=?", (session,)).fetchone() is not None

    def session_ids(self) -> list[int]:
        return [session for (session,) in self._db.execute("SELECT id FROM session")]

    def end_session(self, session: int) -> None:
        """Delete the session and its keys. Safe to repeat."""
        owned = self._db.execute("SELECT parent, name FROM node WHERE session=? ORDER BY id", (session,)).fetchall()
        self._changes += [encode_change(ChangeKind.DELETED, f"{parent}/{name}") for parent, name in owned]
        self._db.execute("DELETE FROM node WHERE session=?", (session,))
        self._db.execute("DELETE FROM session WHERE id=?", (session,))

    def _version(self, parent: str, name: str) -> Version | None:
        row = self._db.execute("SELECT version FROM node WHERE parent=? AND name=?", (parent, name)).fetchone()
        return None if row is None else int(row[0])

    def _report(self, keys: Iterable[str], absent: ChangeKind | None, present: ChangeKind) -> None:
        """Record the changes of a bulk step before it is made: `absent` for missing keys, `present` for others."""
        listed = list(keys)
        if len(listed) > REPORTED_KEYS_MAX:
            self._changes.append(encode_change(ChangeKind.INVALIDATED, common_tree(listed)))
            return
        known = set()
        for some in cut(listed, self._rows_max):
            found = self._db.execute(_present(len(some)), list(chain.from_iterable(map(split, some))))
            known.update(found.fetchall())
        kinds = ((key, present if split(key) in known else absent) for key in listed)
        self._changes += [encode_change(kind, key) for key, kind in kinds if kind is not None]


def cut(items: Sequence[T], rows_max: int) -> Iterator[Sequence[T]]:
    """Parts for one statement each. The interpreter's lock is taken again after every statement (with `executemany`
    after every row), which takes up to five milliseconds while the event loop is busy."""
    for start in range(0, len(items), rows_max):
        yield items[start : start + rows_max]


@lru_cache(STATEMENTS_CACHED)
def _write_over(rows: int, preserve: bool) -> str:
    kept = "excluded" if preserve else "node"
    return (
        "INSERT INTO node(parent, name, version, created_ms, modified_ms, value)"
        f" VALUES{','.join(['(?,?,?,?,?,?)'] * rows)} ON CONFLICT(parent, name) DO UPDATE SET"
        f" version=excluded.version, created_ms={kept}.created_ms,"
        " modified_ms=excluded.modified_ms, session=NULL, value=excluded.value"
    )


@lru_cache(STATEMENTS_CACHED)
def _present(rows: int) -> str:
    """A join, because `IN` over pairs does not use the index."""
    return (
        f"SELECT node.parent, node.name FROM (VALUES {','.join(['(?,?)'] * rows)}) AS wanted CROSS JOIN node"
        " ON node.parent = wanted.column1 AND node.name = wanted.column2"
    )


def common_tree(keys: Sequence[str]) -> str:
    """The deepest tree that contains all these keys."""
    low, high = min(keys), max(keys)
    same = next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    return low[:same].rpartition("/")[0] or "/"
