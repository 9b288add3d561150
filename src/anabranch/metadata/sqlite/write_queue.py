"""The event loop's side of the writer thread: submits the writes of one turn together, returns futures.

Callers that were just answered usually write next, so their writes are submitted right after the last of them has run.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import Future
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from anabranch.metadata.interface import StoreUnavailable, Version
from anabranch.metadata.sqlite.fork_guard import guard
from anabranch.metadata.sqlite.session_files import SessionFiles
from anabranch.metadata.sqlite.tables import KeyColumns, WriteTables
from anabranch.metadata.sqlite.writer import Group, Operation, Write

WAITING_MAX = 100_000

T = TypeVar("T")


class WriteQueue:
    """`submit_all` gets the writes of one turn of the loop, `on_commit` every committed group."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._collected: list[Write] = []  # of this turn of the loop
        self._is_due = False  # a submission is scheduled
        self._waiting = 0
        self._waiting_max = WAITING_MAX
        self._refusal = ""  # why no more writes are accepted
        self._done: deque[Group] = deque()
        self._fd = -1
        guard(self)

    def start(self, submit_all: Callable[[list[Write]], None], on_commit: Callable[[Group], None]) -> None:
        self._submit_all, self._on_commit = submit_all, on_commit
        if hasattr(os, "eventfd"):
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._loop.add_reader(self._fd, self._wake)

    def put(self, columns: KeyColumns, value: bytes, expected: Version) -> Future[Version]:
        """A plain put: by version, without session. The most frequent write, so every microsecond counts here."""
        if self._waiting >= self._waiting_max:
            raise self._refused()
        self._waiting += 1
        future: Future[Version] = Future(loop=self._loop)
        self._collected.append((future, columns, value, expected))
        if not self._is_due:
            self._schedule()
        return future

    def write(
        self, work: Callable[[WriteTables, SessionFiles], T], after: Callable[[SessionFiles], None] | None = None
    ) -> Future[T]:
        if self._waiting >= self._waiting_max:
            raise self._refused()
        future: Future[T] = self._loop.create_future()
        self.submit(Operation(future, work, after))
        return future

    def submit(self, operation: Operation) -> None:
        """Without a bound: for maintenance without a caller. If it does not run, another process does it later."""
        if self._refusal:
            return
        self._waiting += 1
        self._collected.append(operation)
        if not self._is_due:
            self._schedule()

    def _submit_collected(self) -> None:
        self._is_due = False
        if self._collected:
            collected, self._collected = self._collected, []
            self._submit_all(collected)

    def deliver(self, group: Group) -> None:
        """Called from the writer thread."""
        self._done.append(group)
        if self._fd >= 0:  # half of what `call_soon_threadsafe` costs
            os.eventfd_write(self._fd, 1)
        elif not self._loop.is_closed():  # otherwise no caller is left
            self._loop.call_soon_threadsafe(self._answer)

    def check(self) -> None:
        if self._refusal:
            raise self._refused()

    def refuse(self, reason: str) -> None:
        """Accept no more writes; pending ones still get their results."""
        self._refusal, self._waiting_max = reason, 0
        self._submit_collected()

    def close(self) -> None:
        """The writer has ended: deliver the last results."""
        self._answer()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def after_fork(self) -> None:
        self._refusal, self._waiting_max = "a forked process must open the metadata store again", 0
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _refused(self) -> StoreUnavailable:
        return StoreUnavailable(self._refusal or f"{self._waiting} metadata writes are already waiting")

    def _schedule(self) -> None:
        self._is_due = True
        self._loop.call_soon(self._submit_collected)

    def _wake(self) -> None:
        os.eventfd_read(self._fd)
        self._answer()

    def _answer(self) -> None:
        while self._done:
            group = self._done.popleft()
            self._waiting -= len(group.writes)
            for write, result in zip(group.writes, group.results, strict=True):
                future: Future[Any] | None = write[0]
                if future is None or future.done():  # no caller, or it was cancelled
                    continue
                if type(result) is int or not isinstance(result, BaseException):
                    future.set_result(result)
                else:
                    future.set_exception(result)
            self._on_commit(group)
        if not self._is_due:  # after the callers that have just been answered
            self._schedule()
