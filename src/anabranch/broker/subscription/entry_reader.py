"""Reads entries for the dispatcher of one subscription: from memory, from the compacted view, or from disk.

A backlog is read in order. Blocks that the operating system has in memory are read at once on the event loop. Otherwise
a thread reads, and the next block is read ahead while the last one is being delivered; at most one block is ahead.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from anabranch.broker.subscription.dispatcher import Dispatcher, ReadForward, Want, after
from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.interface import LedgerNotFound
from anabranch.storage.topic.topic_log import StoredEntry, TopicLog

READ_ENTRIES_MAX = 1_000
COLD_READS = 16
"""Number of reads in a thread after a read that was not in memory; then memory is tried again."""


class ReadableTopic(Protocol):
    log: TopicLog

    def stable_position(self) -> Position:
        """Last entry that may be delivered."""


class ReadAhead:
    """A read that was started before the dispatcher wanted it."""

    __slots__ = ("start", "task")

    def __init__(self, start: Position, task: asyncio.Task[list[StoredEntry] | Error]) -> None:
        self.start = start
        self.task = task


class SubscriptionReader:
    def __init__(self, topic: ReadableTopic, tasks: TaskOwner, read_bytes: int) -> None:
        self.reads_compacted = False
        self._topic = topic
        self._tasks = tasks
        self._read_bytes = read_bytes
        self.entries_max, self._bytes_max = READ_ENTRIES_MAX, read_bytes  # of one read
        self._ahead: ReadAhead | None = None
        self.resident_reads = 0  # number so far; each blocks the event loop shortly
        self._next: Position | None = None  # where the last read of the log ended
        self._cold = 0  # thread reads left until memory is tried again

    def limit(self, entries: int | None, size: int | None) -> None:
        """Limit one read (None: default limits)."""
        self.entries_max = READ_ENTRIES_MAX if entries is None else min(READ_ENTRIES_MAX, entries)
        self._bytes_max = self._read_bytes if size is None else min(self._read_bytes, size)

    def read_cached(self, want: Want) -> list[StoredEntry] | None:
        """Entries that need no waiting; None if `read` is needed."""
        stable, topic_log = self._topic.stable_position(), self._topic.log
        if isinstance(want, ReadForward):
            start = want.start
            if start > stable:
                return []
            if self.reads_compacted and topic_log.compacted is not None and start <= topic_log.compacted.horizon:
                return None  # the view is read from disk
            reads_on = start == self._next and not self._cold
            if reads_on and (entries := self._read_resident(start, stable)) is not None:
                return entries
            cached = topic_log.read_cached(start, self.entries_max, self._bytes_max, stable)
            if cached is None and reads_on:
                self._cold = COLD_READS
            return cached
        found: list[StoredEntry] = []
        for position in want.positions:
            entries = topic_log.read_cached(position, 1, self._read_bytes, position)
            if entries is None:
                return None
            found.extend(entry for entry in entries if entry.position == position)
        return found

    def _read_resident(self, start: Position, stable: Position) -> list[StoredEntry] | None:
        """The next entries of a backlog read in order, if they are in memory."""
        entries = self._topic.log.read_resident(start, self.entries_max, self._bytes_max, stable)
        if entries is not None:
            self._next = after(entries[-1].position)
            self.resident_reads += 1
        return entries

    async def read(self, dispatcher: Dispatcher, want: Want) -> list[StoredEntry]:
        topic_log = self._topic.log
        if not isinstance(want, ReadForward):
            found: list[StoredEntry] = []
            for position in want.positions:
                single = await topic_log.read(position, 1, self._read_bytes, position)
                found.extend(entry for entry in single if entry.position == position)
            return found
        view = topic_log.compacted if self.reads_compacted else None
        if view is None or want.start > view.horizon:
            return await self._read_log(want.start)
        generation = dispatcher.generation
        try:
            entries = await view.read(want.start, self.entries_max, self._bytes_max)
        except LedgerNotFound:
            if topic_log.compacted is view:
                raise
            return []  # replaced by a newer view: the pump reads again
        if not entries and generation == dispatcher.generation:
            dispatcher.read_position = Position(view.horizon.ledger, view.horizon.entry + 1)  # continue with the log
        return entries

    async def _read_log(self, start: Position) -> list[StoredEntry]:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.start == start:
            outcome = await ahead.task
            if isinstance(outcome, Error):
                raise outcome
            entries = outcome
        else:
            entries = await self._fetch(start)
        if entries:
            self._next = after(entries[-1].position)
            self._cold = max(self._cold - 1, 0)
            if self._cold and sum(len(entry.payload) for entry in entries) * 2 > self._read_bytes:
                self._fetch_ahead(self._next)
        return entries

    def _fetch_ahead(self, start: Position) -> None:
        if start <= self._topic.stable_position():
            task = self._tasks.spawn(self._try_fetch(start), "read ahead")
            if task is not None:
                self._ahead = ReadAhead(start, task)

    async def _try_fetch(self, start: Position) -> list[StoredEntry] | Error:
        """The error is returned, because the result may never be used."""
        try:
            return await self._fetch(start)
        except Error as error:
            return error

    async def _fetch(self, start: Position) -> list[StoredEntry]:
        return await self._topic.log.read(start, self.entries_max, self._bytes_max, self._topic.stable_position())

    def discard(self) -> None:
        """Discard what was read ahead."""
        self._ahead = None
