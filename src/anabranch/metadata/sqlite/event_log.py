"""The log of changes in the SQLite store, from which every process reads the changes of the others. Synchronous.

Numbers have no gaps: a reader at number n expects n + 1 next; anything else means that older rows were trimmed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from anabranch.metadata.interface import Change, ChangeKind

EVENTS_KEPT = 10_000  # how many changes a slow process may be behind
EncodedChange = tuple[ChangeKind, str, str]
"""Kind, key, and both as JSON. Not a `Change`, which costs a microsecond and is rarely needed here."""

_encode = json.JSONEncoder().encode
_KINDS = {kind.value: kind for kind in ChangeKind}


def encode_change(kind: ChangeKind, key: str) -> EncodedChange:
    return kind, key, f'["{kind.value}",{_encode(key)}]'


def read_message(message: bytes) -> tuple[int, list[Change]]:
    """(number of the first, the changes) of a message from `EventLog.append`."""
    first, _, encoded = message.partition(b" ")
    return int(first), _decoded(encoded)


def _decoded(encoded: str | bytes) -> list[Change]:
    return [Change(_KINDS[kind], key) for kind, key in json.loads(encoded)]


class EventLog:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def last(self) -> int:
        (last,) = self._db.execute("SELECT max(last) FROM event").fetchone()
        return last or 0

    def append(self, first: int, changes: Sequence[EncodedChange]) -> bytes:
        """Store the changes; returns them as a message for `read_message`."""
        encoded = f"[{','.join([change[2] for change in changes])}]"
        self._db.execute(
            "INSERT INTO event(last, first, changes) VALUES(?,?,?)", (first + len(changes) - 1, first, encoded)
        )
        return f"{first} {encoded}".encode()

    def raise_to(self, number: int) -> None:
        """Make every later change have a higher number."""
        self._db.execute(
            'INSERT INTO event(last, first, changes) VALUES(?,?,\'[["invalidated", "/"]]\')', (number, number)
        )

    def after(self, seen: int) -> tuple[int, list[Change]]:
        """(last number, changes since `seen`); a single INVALIDATED if some of them were trimmed."""
        last = self.last()
        if last <= seen:
            return seen, []
        if last - seen > EVENTS_KEPT:
            return last, [Change(ChangeKind.INVALIDATED, "/")]
        changes: list[Change] = []
        rows = self._db.execute("SELECT first, last, changes FROM event WHERE last>? ORDER BY last", (seen,))
        for first, last, encoded in rows.fetchall():
            if first > seen + 1:
                changes = [Change(ChangeKind.INVALIDATED, "/")]
            changes += _decoded(encoded)[max(0, seen + 1 - first) :]
            seen = last
        return seen, changes

    def trim(self) -> None:
        """Delete old rows. The last row stays, because it has the last number."""
        self._db.execute("DELETE FROM event WHERE last<(SELECT max(last) FROM event)-?", (EVENTS_KEPT,))
