"""Replays a state log: records in, cursors and named blobs out. No I/O; the caller reads the entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.cursor.state_codec import (
    BlobSaved,
    CursorDeleted,
    CursorDelta,
    CursorProperties,
    CursorSaved,
    SnapshotBegins,
    SnapshotCommitted,
    StateRecord,
)


class Replay:
    """Folds state records into cursors and blobs. A snapshot counts only after its commit.

    Each state ledger begins with a snapshot, so an uncommitted one is dropped when the next ledger begins.
    """

    def __init__(self, make_cursor: Callable[[CursorSaved], Cursor]) -> None:
        self._make_cursor = make_cursor
        self.cursors: dict[str, Cursor] = {}
        self.blobs: dict[str, bytes] = {}
        self._snapshot: list[StateRecord] | None = None

    def feed(self, records: Iterable[StateRecord]) -> None:
        for record in records:
            if isinstance(record, SnapshotBegins):
                self._snapshot = []
            elif isinstance(record, SnapshotCommitted):
                if self._snapshot is not None:
                    self.cursors, self.blobs = {}, {}
                    snapshot, self._snapshot = self._snapshot, None
                    for saved in snapshot:
                        self._apply(saved)
            elif self._snapshot is not None:
                self._snapshot.append(record)
            else:
                self._apply(record)

    def _apply(self, record: StateRecord) -> None:
        match record:
            case CursorSaved():
                self.cursors[record.name] = self._make_cursor(record)
            case CursorDelta():
                if (cursor := self.cursors.get(record.name)) is not None:
                    cursor.apply(record)
            case CursorProperties():
                if (cursor := self.cursors.get(record.name)) is not None:
                    cursor.apply_properties(record.properties)
            case CursorDeleted():
                self.cursors.pop(record.name, None)
            case BlobSaved():
                self.blobs[record.key] = record.value
            case _:
                raise AssertionError(f"{record} is handled by feed")
