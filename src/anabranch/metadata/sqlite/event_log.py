"""The log of changes in the embedded store: how every process learns what the others did. Synchronous.

Numbers have no holes: a reader at number n expects n + 1 next, and anything else means that it fell behind the trim.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from anabranch.metadata.interface import Change, ChangeKind

EVENTS_KEPT = 10_000  # changes that a slow process can be behind
EncodedChange = tuple[ChangeKind, str, str]
"""Kind, key, and both as JSON: a `Change` costs a microsecond, and most are never looked at here."""

_encode = json.JSONEncoder().encode
_KINDS = {kind.value: kind for kind in ChangeKind}


def encode_change(kind: ChangeKind, key: str) -> EncodedChange:
    return kind, key, f'["{kind.value}",{_encode(key)}]'


def read_message(message: bytes) -> tuple[int, list[Change]]:
    """(number of the first, the changes) that `EventLog.append` wrote down."""
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
        """Write them down; the answer is the same as a message for `read_message`."""
        encoded = f"[{','.join([change[2] for change in changes])}]"
        self._db.execute(
            "INSERT INTO event(last, first, changes) VALUES(?,?,?)", (first + len(changes) - 1, first, encoded)
        )
        return f"{first} {encoded}".encode()

    def raise_to(self, number: int) -> None:
        """Every later change has a higher number."""
        self._db.execute(
            'INSERT INTO event(last, first, changes) VALUES(?,?,\'[["invalidated", "/"]]\')', (number, number)
        )

    def after(self, seen: int) -> tuple[int, list[Change]]:
        """(last number, changes since `seen`); a single INVALIDATED when some of them cannot be had any more."""
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
        """The last row stays: it holds the number to go on with."""
        self._db.execute("DELETE FROM event WHERE last<(SELECT max(last) FROM event)-?", (EVENTS_KEPT,))
