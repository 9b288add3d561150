"""The one thread that writes to an embedded metadata store: it turns queued operations into group commits.

Whatever is queued while one group is being synced becomes the next group: one transaction, one fsync. Commits,
checkpoints, open and close happen only under the writer lock (see `filelock`). Knows no event loop beyond the `deliver`
function.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.metadata.filelock import SessionFiles, WriterLock
from anabranch.metadata.port import Change, StoreUnavailable
from anabranch.metadata.sqlite_table import Reading, Writing, connect, prepare
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock

log = logging.getLogger(__name__)

GROUP_OPERATIONS_MAX = 512
CHECKPOINT_WAL_BYTES = 4 * 1024 * 1024


class Operation:
    """One queued piece of work and, after its group, its outcome."""

    __slots__ = ("context", "error", "result", "work")

    def __init__(self, work: Callable[[Writing, SessionFiles], Any], context: Any) -> None:
        self.work = work
        self.context = context
        self.result: Any = None
        self.error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """What one commit brought: outcomes first, then every change since the last group, other processes' included."""

    operations: list[Operation]
    changes: list[Change]


class Writer:
    """Start with `open` (blocking), hand in operations from any thread, end with `close` (blocking)."""

    def __init__(self, folder: Path, clock: Clock, deliver: Callable[[Group], None], lock_wait_ms_max: int) -> None:
        self._folder = folder
        self._clock = clock
        self._deliver = deliver
        self._lock_wait_ms_max = lock_wait_ms_max
        self._inbox: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="metadata-writer", daemon=True)
        self._seen = 0

    def open(self) -> Reading:
        """Open or create the files, reap what dead processes left, start the thread; returns what readers use."""
        path = self._folder / "metadata.db"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(self._folder / "writer.lock", self._clock, self._lock_wait_ms_max)
            with self._lock.held():
                self._db = connect(path)
                prepare(self._db)
                self._table = Writing(self._db)
                self._sessions = SessionFiles(self._folder / "sessions")
                self._reap()
                self._seen = self._table.last_event()
                self._reader_db = connect(path)
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(f"cannot open the metadata in {self._folder}: {error}") from error
        self._wal = path.with_name("metadata.db-wal")
        self._thread.start()
        return Reading(self._reader_db)

    def submit(self, operation: Operation) -> None:
        self._inbox.put(operation)

    def sweep(self) -> Operation:
        """An operation that ends the sessions of dead processes; its group also brings what others changed."""
        return Operation(lambda table, sessions: self._end_dead(), None)

    def close(self) -> None:
        """Let queued work finish, then close the files. The reader connection must be idle by now."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        running = True
        while running:
            first = self._inbox.get()
            if first is None:
                break
            operations = [first]
            while len(operations) < GROUP_OPERATIONS_MAX and not self._inbox.empty():
                operation = self._inbox.get_nowait()
                if operation is None:
                    running = False
                    break
                operations.append(operation)
            self._deliver(self._commit(operations))
        self._finish()

    def _commit(self, operations: list[Operation]) -> Group:
        try:
            with self._lock.held():
                try:
                    changes = self._transact(operations)
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
                self._checkpoint()
            return Group(operations, changes)
        except Exception as error:  # whatever happened, the callers must hear of it
            if not isinstance(error, sqlite3.Error | OSError | StoreUnavailable):
                log.exception("metadata writer failed")
            unavailable = StoreUnavailable(f"metadata was not written: {error}")
            unavailable.__cause__ = error
            for operation in operations:
                operation.error = unavailable
            return Group(operations, [])

    def _transact(self, operations: list[Operation]) -> list[Change]:
        self._db.execute("BEGIN IMMEDIATE")
        for operation in operations:
            try:
                operation.result = operation.work(self._table, self._sessions)
            except Error as error:
                operation.error = error
        seen, changes = self._table.events_after(self._seen)
        self._db.execute("COMMIT")
        self._seen = seen
        return changes

    def _reap(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._end_dead()
        self._db.execute("COMMIT")

    def _end_dead(self) -> None:
        for session in self._sessions.dead(self._table.session_ids()):
            self._table.end_session(session)
            self._sessions.remove(session)

    def _checkpoint(self) -> None:
        """Move the WAL into the file. What is committed stays committed when this fails; the next group tries again."""
        try:
            if self._wal.stat().st_size > CHECKPOINT_WAL_BYTES:
                self._table.trim_events()
                self._db.execute("PRAGMA busy_timeout=0")  # a reader in the middle of a page: later, not now
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except (sqlite3.Error, OSError) as error:
            log.warning("metadata checkpoint failed", extra={"error": str(error)})

    def _finish(self) -> None:
        try:
            with self._lock.held():
                self._reader_db.close()
                self._db.close()
        except (sqlite3.Error, StoreUnavailable) as error:
            log.warning("metadata was not closed cleanly; the next start recovers it", extra={"error": str(error)})
        self._sessions.close()
        self._lock.close()
