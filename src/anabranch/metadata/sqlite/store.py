"""The embedded metadata store: one SQLite file in a directory, shared safely by the processes of one machine.

The asyncio side of the writer thread (all writes), one reader thread, and the notifications of other processes. A write
is durable when its call returns. All writes of one turn of the event loop are submitted together.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from anabranch.metadata.interface import (
    RESERVED,
    VALUE_BYTES_MAX,
    Capabilities,
    Expected,
    Item,
    Session,
    SessionLost,
    StoreUnavailable,
    Version,
    Versioned,
    check_key,
    check_tree,
    check_value,
    is_within,
)
from anabranch.metadata.sqlite.change_feed import ChangeFeed
from anabranch.metadata.sqlite.fork_guard import guard
from anabranch.metadata.sqlite.session_files import SessionFiles
from anabranch.metadata.sqlite.sessions import OpenSessions
from anabranch.metadata.sqlite.tables import (
    INT_MAX,
    INT_MIN,
    KEY_CHARS_CACHED,
    ReadTables,
    WriteTables,
    key_columns,
    page_reader,
    scan_ranges,
)
from anabranch.metadata.sqlite.write_queue import WriteQueue
from anabranch.metadata.sqlite.writer import Writer
from anabranch.metadata.watch_fanout import TreeWatch
from anabranch.runtime.clock import Clock

LOCK_WAIT_MS_MAX = 10_000  # a healthy process holds the writer lock for milliseconds
SCAN_ROWS = 500
BULK_READ_ROWS = 1000  # read in about 2 ms: the reader thread holds the interpreter's lock meanwhile
READ_ROWS_FIRST = 100
READ_BYTES = 4_000_000  # aimed at for a page, from the sizes in the page before
BULK_ROWS = 5000
CAPABILITIES = Capabilities("sqlite", is_durable=True, is_shared=True, has_snapshot_scan=False, ttl_ms_min=500)

T = TypeVar("T")


class SqliteStore:
    def __init__(self, folder: Path, clock: Clock, lock_wait_ms_max: int = LOCK_WAIT_MS_MAX) -> None:
        self._folder = folder
        self._lock_wait_ms_max = lock_wait_ms_max
        self._clock = clock
        self._writer: Writer | None = None
        self._write_queue: WriteQueue | None = None
        self._is_forked = False
        guard(self)

    async def open(self) -> None:
        assert self._writer is None, "already open"
        loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(1, "metadata-reader")

        write_queue = WriteQueue(loop)
        writer = Writer(self._folder, self._clock, write_queue.deliver, self._lock_wait_ms_max)
        try:
            await loop.run_in_executor(self._pool, writer.open)
        except BaseException:
            self._pool.shutdown(wait=False)
            raise
        self._writer, self._write_queue, self._loop = writer, write_queue, loop
        self._feed = ChangeFeed(writer, write_queue.submit, self._clock)
        self._sessions = OpenSessions(write_queue, writer.sessions, self._clock)
        write_queue.start(writer.submit, self._feed.on_commit)
        self._feed.start()

    async def close(self) -> None:
        """End the sessions first: their keys are deleted when this returns."""
        writer, write_queue = self._writer, self._write_queue
        if writer is None or write_queue is None:
            return
        if self._is_forked:  # files, threads and sessions belong to the parent
            self._writer, self._write_queue, self._is_forked = None, None, False
            return
        await self._sessions.close()
        if self._writer is not writer:
            return  # closed concurrently
        self._writer = self._write_queue = None
        write_queue.refuse("the metadata store is not open")
        self._feed.close()
        await self._loop.run_in_executor(self._pool, writer.close)
        write_queue.close()
        self._pool.shutdown(wait=False)

    def after_fork(self) -> None:
        self._is_forked = self._writer is not None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def get(self, key: str) -> Versioned | None:
        check_key(key)
        return await self._read(lambda table: table.get(key))

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        write_queue = self._write_queue
        if (  # the most frequent write, in the common case
            type(expected) is int
            and session is None
            and type(value) is bytes
            and len(value) <= VALUE_BYTES_MAX
            and len(key) <= KEY_CHARS_CACHED
            and INT_MIN <= expected <= INT_MAX
            and write_queue is not None
        ):
            return await write_queue.put(key_columns(key), value, expected)
        check_key(key)
        check_value(key, value)
        self._opened()
        now_ms, data, owner = self._clock.now_ms(), bytes(value), self._sessions.id_of(session)
        try:
            return await self._write(lambda table, sessions: table.put(key, data, expected, owner, now_ms))
        except SessionLost:
            self._sessions.forget(session)
            raise

    async def delete(self, key: str, *, expected: Expected) -> None:
        check_key(key)
        await self._write(lambda table, sessions: table.delete(key, expected))

    async def sync(self) -> None:
        """Every read begins after the last commit, so there is nothing to wait for."""
        self._opened()

    async def children(self, key: str) -> list[str]:
        tree = check_tree(key)
        names = await self._read(lambda table: table.children(tree))
        return [name for name in names if f"{tree}/{name}" != RESERVED]

    async def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        async for page in self._pages(prefix, SCAN_ROWS):
            for item in page:
                yield item

    async def bulk_scan(self, prefix: str) -> AsyncIterator[list[Item]]:
        async for page in self._pages(prefix, BULK_READ_ROWS):
            yield page

    async def keys_about(self) -> int:
        return await self._read(lambda table: table.count())

    async def bulk_write(self, items: Sequence[Item], *, preserve: bool) -> None:
        for key, given in items:
            check_key(key)
            check_value(key, given.value)
        now_ms = self._clock.now_ms()
        for start in range(0, len(items), BULK_ROWS):
            await self._write(partial(_write_part, items[start : start + BULK_ROWS], preserve, now_ms))

    async def bulk_delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for start in range(0, len(keys), BULK_ROWS):
            await self._write(partial(_delete_part, keys[start : start + BULK_ROWS]))

    async def raise_versions(self, floor: Version) -> None:
        await self._write(lambda table, sessions: table.raise_versions(floor))

    async def open_session(self, ttl_ms: int) -> Session:
        self._opened()
        return await self._sessions.open(max(ttl_ms, CAPABILITIES.ttl_ms_min))

    def watch(self, prefix: str) -> TreeWatch:
        self._opened()
        return self._feed.watch(prefix)

    def _opened(self) -> Writer:
        if self._writer is None:
            raise _not_open()
        if self._is_forked:
            raise StoreUnavailable("a forked process must open the metadata store again")
        return self._writer

    async def _pages(self, prefix: str, rows_max: int) -> AsyncIterator[list[Item]]:
        tree = check_tree(prefix)
        if tree and (found := await self.get(tree)) is not None:
            yield [(tree, found)]
        for low, end in scan_ranges(tree):
            after, rows = (low, ""), min(rows_max, READ_ROWS_FIRST)
            while page := await self._read(page_reader(after, end, rows)):
                items = [(f"{parent}/{name}", found) for parent, name, found in page]
                yield items if tree else [item for item in items if not is_within(item[0], RESERVED)]
                if len(page) < rows:
                    break
                after, rows = page[-1][:2], next_rows(items, rows_max)

    async def _read(self, read: Callable[[ReadTables], T]) -> T:
        reading = self._opened().reading
        try:
            return await self._loop.run_in_executor(self._pool, read, reading)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"cannot read metadata: {error}") from error

    def _write(self, work: Callable[[WriteTables, SessionFiles], T]) -> asyncio.Future[T]:
        if self._write_queue is None:
            raise _not_open()
        return self._write_queue.write(work)


def next_rows(page: Sequence[Item], rows_max: int) -> int:
    """Rows to read after this page, so that large values do not make large pages."""
    size = sum(len(found.value) for _, found in page)
    return max(1, min(rows_max, READ_BYTES * len(page) // max(size, 1)))


def _not_open() -> StoreUnavailable:
    return StoreUnavailable("the metadata store is not open")


def _write_part(items: Sequence[Item], preserve: bool, now_ms: int, table: WriteTables, sessions: SessionFiles) -> None:
    table.write_over(items, preserve, now_ms)


def _delete_part(keys: Sequence[str], table: WriteTables, sessions: SessionFiles) -> None:
    table.delete_all(keys)
