"""The embedded metadata store: one SQLite file in a directory, shared safely by the processes of one machine.

The asyncio face of `sqlite_writer` (all writes) and of one reader thread. A write is durable when its call returns.
Changes made by other processes are noticed within `POLL_S`; sessions live exactly as long as their process, so `ttl_ms`
is not needed.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from anabranch.metadata.filelock import SessionFiles
from anabranch.metadata.port import (
    Expected,
    Session,
    SessionLost,
    StoreUnavailable,
    Version,
    Versioned,
    check_key,
    check_tree,
    check_value,
)
from anabranch.metadata.sqlite_table import Reading, Writing, page_reader, scan_ranges
from anabranch.metadata.sqlite_writer import Group, Operation, Writer
from anabranch.metadata.watches import TreeWatch, Watches
from anabranch.runtime.clock import Clock, Timer

POLL_S = 1.0
LOCK_WAIT_MS_MAX = 10_000  # a healthy process holds the writer lock for milliseconds
SCAN_ROWS = 500

T = TypeVar("T")

log = logging.getLogger(__name__)


class SqliteSession:
    def __init__(self, store: SqliteStore, session_id: int) -> None:
        self._store = store
        self._lost = asyncio.Event()
        self.session_id = session_id

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        await self._store.end_session(self)

    def mark_lost(self) -> None:
        self._lost.set()


class SqliteStore:
    def __init__(self, folder: Path, clock: Clock, lock_wait_ms_max: int = LOCK_WAIT_MS_MAX) -> None:
        self._folder = folder
        self._lock_wait_ms_max = lock_wait_ms_max
        self._clock = clock
        self._watches = Watches()
        self._sessions: set[SqliteSession] = set()
        self._writer: Writer | None = None
        self._reading: Reading | None = None
        self._poll: Timer | None = None

    async def open(self) -> None:
        assert self._writer is None, "already open"
        loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(1, "metadata-reader")

        def deliver(group: Group) -> None:
            if not loop.is_closed():  # else nobody is left to be told
                loop.call_soon_threadsafe(self._delivered, group)

        writer = Writer(self._folder, self._clock, deliver, self._lock_wait_ms_max)
        try:
            self._reading = await loop.run_in_executor(self._pool, writer.open)
        except BaseException:
            self._pool.shutdown(wait=False)
            raise
        self._writer = writer
        self._poll_later()

    async def close(self) -> None:
        """Ends sessions first: their keys are gone when this returns."""
        if self._writer is None:
            return
        for session in tuple(self._sessions):
            try:
                await self.end_session(session)
            except StoreUnavailable as error:  # closing drops its lock, so the next to look ends it
                log.warning("session was not ended", extra={"error": str(error)})
        writer, self._writer, self._reading = self._writer, None, None
        if self._poll is not None:
            self._poll.cancel()
        self._watches.close()
        await asyncio.get_running_loop().run_in_executor(self._pool, writer.close)
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def get(self, key: str) -> Versioned | None:
        check_key(key)
        return await self._read(lambda table: table.get(key))

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        check_key(key)
        check_value(key, value)
        owner = self._own(session)
        now_ms = self._clock.now_ms()
        data = bytes(value)
        try:
            return await self._write(lambda table, sessions: table.put(key, data, expected, owner, now_ms))
        except SessionLost:
            if isinstance(session, SqliteSession):
                self._forget(session)
            raise

    async def delete(self, key: str, *, expected: Expected) -> None:
        check_key(key)
        await self._write(lambda table, sessions: table.delete(key, expected))

    async def children(self, key: str) -> list[str]:
        tree = check_tree(key)
        return await self._read(lambda table: table.children(tree))

    async def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        tree = check_tree(prefix)
        if tree and (found := await self.get(tree)) is not None:
            yield tree, found
        for low, end in scan_ranges(tree):
            after = (low, "")
            while page := await self._read(page_reader(low, end, after, SCAN_ROWS)):
                for parent, name, found in page:
                    yield f"{parent}/{name}", found
                if len(page) < SCAN_ROWS:
                    break
                after = page[-1][:2]

    async def open_session(self, ttl_ms: int) -> Session:
        now_ms = self._clock.now_ms()

        def create(table: Writing, files: SessionFiles) -> int:
            session_id = table.create_session(now_ms)
            files.create(session_id)
            return session_id

        session = SqliteSession(self, await self._write(create))
        self._sessions.add(session)
        return session

    def watch(self, prefix: str) -> TreeWatch:
        if self._writer is None:
            raise StoreUnavailable("the metadata store is not open")
        return self._watches.add(prefix)

    async def end_session(self, session: SqliteSession) -> None:
        if session not in self._sessions:
            return
        self._forget(session)

        def end(table: Writing, files: SessionFiles) -> None:
            table.end_session(session.session_id)
            files.remove(session.session_id)

        await self._write(end)

    def _forget(self, session: SqliteSession) -> None:
        self._sessions.discard(session)
        session.mark_lost()

    def _own(self, session: Session | None) -> int | None:
        if session is None:
            return None
        if not isinstance(session, SqliteSession) or session not in self._sessions:
            raise SessionLost("the session has ended")
        return session.session_id

    async def _read(self, read: Callable[[Reading], T]) -> T:
        if self._reading is None:
            raise StoreUnavailable("the metadata store is not open")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, read, self._reading)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"metadata was not read: {error}") from error

    async def _write(self, work: Callable[[Writing, SessionFiles], T]) -> T:
        if self._writer is None:
            raise StoreUnavailable("the metadata store is not open")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._writer.submit(Operation(work, future))
        return await future

    def _delivered(self, group: Group) -> None:
        for operation in group.operations:
            future: asyncio.Future[Any] | None = operation.context
            if future is None or future.done():  # a sweep, or the caller was cancelled
                continue
            if operation.error is not None:
                future.set_exception(operation.error)
            else:
                future.set_result(operation.result)
        self._watches.publish(group.changes)

    def _poll_later(self) -> None:
        def poll() -> None:
            if self._writer is not None:
                self._writer.submit(self._writer.sweep())
                self._poll_later()

        self._poll = self._clock.call_later(POLL_S, poll)
