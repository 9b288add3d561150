"""The thread that writes to the SQLite store: it turns queued operations into group commits.

Operations queued during the sync of one group form the next group: one transaction, one fsync. Commits, checkpoints,
open and close happen only under the writer lock (`file_lock.py`).
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, cast

from anabranch.metadata.interface import OutcomeUnknown, StoreUnavailable, Version
from anabranch.metadata.sqlite.change_notifier import ChangeNotifier
from anabranch.metadata.sqlite.event_log import EncodedChange, EventLog
from anabranch.metadata.sqlite.file_lock import WriterLock
from anabranch.metadata.sqlite.fork_guard import abandon, guard
from anabranch.metadata.sqlite.schema import BUSY_MS, DATABASE, connect, prepare
from anabranch.metadata.sqlite.session_files import SessionFiles
from anabranch.metadata.sqlite.tables import PlainPut, ReadTables, WriteTables
from anabranch.metadata.sqlite.wal_file import WalFile
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

GROUP_WRITES_MAX = 512
WAL_BYTES = 4 * 1024 * 1024
EXTEND_AFTER = 8  # commits: a process that writes this often will write more, so a long log pays off

Work = Callable[[WriteTables, SessionFiles], Any]
After = Callable[[SessionFiles], None]


class Operation(NamedTuple):
    """One queued operation. `context` is its future or None; `after` runs once its group is committed."""

    context: Any
    work: Work
    after: After | None = None


Write = Operation | PlainPut


class Group(NamedTuple):
    """One commit: a result or error for each write, and its changes, numbered from `base` + 1."""

    writes: list[Write]
    results: list[Any]
    base: int
    changes: list[EncodedChange]


class Writer:
    """`open` (blocking) starts it, `submit` takes operations from any thread, `close` (blocking) ends it."""

    def __init__(self, folder: Path, clock: Clock, deliver: Callable[[Group], None], lock_wait_ms_max: int) -> None:
        self._folder = folder
        self._clock = clock
        self._deliver = deliver
        self._lock_wait_ms_max = lock_wait_ms_max
        self._inbox: queue.SimpleQueue[list[Write] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="metadata-writer", daemon=True)
        self._connections: list[sqlite3.Connection] = []
        self._wal = WalFile(f"{folder / DATABASE}-wal", WAL_BYTES)

    def open(self) -> None:
        """Open or create the files, end sessions of dead processes, start the thread."""
        path = self._folder / DATABASE
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(self._folder / "writer.lock", self._clock, self._lock_wait_ms_max)
            with self._lock:
                self._db = self._connect(path)
                prepare(self._db)
                self._table = WriteTables(self._db)
                self.sessions = SessionFiles(self._folder / "sessions")
                self.notifier = ChangeNotifier(self._folder / "bell", self.sessions.folder)
                self.reading = ReadTables(self._connect(path))
                self.events = EventLog(self._connect(path))
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(f"cannot open metadata in {self._folder}: {error}") from error
        guard(self)
        self._commit([self.sweep()])
        self._thread.start()

    def submit(self, writes: list[Write]) -> None:
        self._inbox.put(writes)

    def sweep(self) -> Operation:
        """An operation that ends sessions of processes that have ended or do not answer."""
        ended: list[int] = []

        def end_dead(table: WriteTables, sessions: SessionFiles) -> None:
            for session in sessions.find_dead(table.session_ids(), self._clock.monotonic()):
                table.end_session(session)
                ended.append(session)

        def remove(sessions: SessionFiles) -> None:
            for session in ended:
                sessions.remove(session)
            if ended:
                log.info("ended metadata sessions of dead or hanging processes", extra={"sessions": ended})

        return Operation(None, end_dead, remove)

    def close(self) -> None:
        """Let queued operations finish, then close the files. The other connections must be idle."""
        self._inbox.put(None)
        self._thread.join()

    def after_fork(self) -> None:
        """The child has no writer thread and must not close the parent's connections."""
        for connection in self._connections:
            abandon(connection)
        self._wal.close()

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = connect(path)
        self._connections.append(connection)
        return connection

    def _run(self) -> None:
        running, commits = True, 0
        while running:
            writes = self._inbox.get()
            if writes is None:
                break
            while len(writes) < GROUP_WRITES_MAX and not self._inbox.empty():
                more = self._inbox.get_nowait()
                if more is None:
                    running = False
                    break
                writes += more
            group = self._commit(writes)
            is_long = self._is_log_long()
            self._deliver(group)  # usually last: the loop wakes up and needs the GIL
            commits += 1
            if is_long:
                self._checkpoint()
            elif commits == EXTEND_AFTER:
                self._extend_log()
        self._finish()

    def _commit(self, writes: list[Write]) -> Group:
        try:
            with self._lock:
                before = self._db.total_changes
                try:
                    results, afters = self._perform(writes)
                    base, changes, message = self._table.end()
                    self._end_transaction()
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
                self._follow_up(message if self._db.total_changes != before else None, afters)
            return Group(writes, results, base, changes)
        except Exception as error:  # every caller must get an answer
            if not isinstance(error, sqlite3.Error | OSError | StoreUnavailable):
                log.exception("metadata writer failed")
            unavailable = (
                error if isinstance(error, OutcomeUnknown) else StoreUnavailable(f"metadata not written: {error}")
            )
            unavailable.__cause__ = unavailable.__cause__ or error
            return Group(writes, [unavailable] * len(writes), 0, [])

    def _end_transaction(self) -> None:
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:  # the frames may be in the log, and a recovery may apply them
            raise OutcomeUnknown(f"the metadata commit failed: {error}") from error

    def _perform(self, writes: list[Write]) -> tuple[list[Any], list[After]]:
        """A result or an error for each, and the functions to call after the commit."""
        self._table.begin()
        results: list[Any] = []
        afters: list[After] = []
        for kind, run in groupby(writes, type):
            if kind is Operation:
                results += [self._operate(operation, afters) for operation in cast("Iterator[Operation]", run)]
            else:
                results += self._put(cast("list[PlainPut]", list(run)))
        return results, afters

    def _operate(self, operation: Operation, afters: list[After]) -> Any:
        try:
            result = operation.work(self._table, self.sessions)
        except Error as error:
            return error.with_traceback(None)  # its frames refer to the operation, and so to the error itself
        if operation.after is not None:
            afters.append(operation.after)
        return result

    def _put(self, puts: list[PlainPut]) -> Iterable[Version | Error]:
        """All at once; if any is refused, which changes nothing, then one by one."""
        now_ms = self._clock.now_ms()
        first = self._table.put_all(puts, now_ms)
        if first is not None:
            return range(first, first + len(puts))
        return [self._put_one(put, now_ms) for put in puts]

    def _put_one(self, put: PlainPut, now_ms: int) -> Version | Error:
        _, (_, _, (_, key, _)), value, expected = put
        try:
            return self._table.put(key, value, expected, None, now_ms)
        except Error as error:
            return error

    def _follow_up(self, message: bytes | None, afters: list[After]) -> None:
        """Failures here do not undo the commit: other processes poll, and remaining files are swept."""
        try:
            if message is not None:
                self.notifier.notify(message)
            for after in afters:
                after(self.sessions)
        except OSError as error:
            log.warning("metadata notification or session file failed", extra={"error": str(error)})

    def _is_log_long(self) -> bool:
        try:
            return self._wal.is_long()
        except OSError as error:
            log.warning("metadata write-ahead log not read", extra={"error": str(error)})
            return False

    def _extend_log(self) -> None:
        """If it fails, the log grows with each commit, as usual for SQLite."""
        try:
            with self._lock:
                self._wal.extend(self._db)
        except (sqlite3.Error, StoreUnavailable, OSError) as error:
            log.warning("metadata write-ahead log not extended; commits are slower", extra={"error": str(error)})

    def _checkpoint(self) -> None:
        """Checkpoint a long log, after the callers have been answered. A failure is retried next time."""
        try:
            with self._lock:
                EventLog(self._db).trim()
                self._db.execute("PRAGMA busy_timeout=0")  # do not wait for a reader
                self._db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                self._db.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        except (sqlite3.Error, StoreUnavailable) as error:
            log.warning("metadata checkpoint failed; retrying later", extra={"error": str(error)})

    def _finish(self) -> None:
        try:
            with self._lock:
                for connection in self._connections:
                    connection.close()
        except (sqlite3.Error, StoreUnavailable) as error:
            log.warning("metadata database not closed cleanly; the next start recovers it", extra={"error": str(error)})
        self._wal.close()
        self.sessions.close()
        self.notifier.close()
        self._lock.close()
