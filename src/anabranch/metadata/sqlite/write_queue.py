"""The event loop's side of the writer: writes of one turn of the loop go over together, outcomes come back as futures.

Callers that were just answered are those who write next, so what they ask for goes over right after the last of them
had its turn. Knows the queue and its bound; knows no tables and no sessions.
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
    """Made in the loop that uses it. `to` gets the writes of a turn, `told` every group with its outcomes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._collected: list[Write] = []  # of this turn of the loop
        self._is_due = False  # a hand-over is scheduled
        self._waiting = 0
        self._waiting_max = WAITING_MAX
        self._refusal = ""  # why nothing is taken any more
        self._done: deque[Group] = deque()
        self._fd = -1
        guard(self)

    def start(self, to: Callable[[list[Write]], None], told: Callable[[Group], None]) -> None:
        self._to, self._told = to, told
        if hasattr(os, "eventfd"):
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._loop.add_reader(self._fd, self._wake)

    def put(self, place: KeyColumns, value: bytes, expected: Version) -> Future[Version]:
        """A plain put: by version, without session. The most frequent write, so every microsecond counts here."""
        if self._waiting >= self._waiting_max:
            raise self._refused()
        self._waiting += 1
        future: Future[Version] = Future(loop=self._loop)
        self._collected.append((future, place, value, expected))
        if not self._is_due:
            self._hand_over_later()
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
        """Without a bound: for upkeep that nobody waits for. Whoever has the store open next does it, if we do not."""
        if self._refusal:
            return
        self._waiting += 1
        self._collected.append(operation)
        if not self._is_due:
            self._hand_over_later()

    def _hand_over(self) -> None:
        self._is_due = False
        if self._collected:
            collected, self._collected = self._collected, []
            self._to(collected)

    def deliver(self, group: Group) -> None:
        """From the writer's thread."""
        self._done.append(group)
        if self._fd >= 0:  # half of what `call_soon_threadsafe` costs
            os.eventfd_write(self._fd, 1)
        elif not self._loop.is_closed():  # else nobody is left to be told
            self._loop.call_soon_threadsafe(self._answer)

    def check(self) -> None:
        if self._refusal:
            raise self._refused()

    def refuse(self, reason: str) -> None:
        """Take nothing any more, but give the outcomes of what was taken."""
        self._refusal, self._waiting_max = reason, 0
        self._hand_over()

    def close(self) -> None:
        """The writer has ended: the last outcomes are here."""
        self._answer()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def after_fork(self) -> None:
        self._refusal, self._waiting_max = "a forked process must open the metadata store anew", 0
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _refused(self) -> StoreUnavailable:
        return StoreUnavailable(self._refusal or f"{self._waiting} metadata writes are waiting already")

    def _hand_over_later(self) -> None:
        self._is_due = True
        self._loop.call_soon(self._hand_over)

    def _wake(self) -> None:
        os.eventfd_read(self._fd)
        self._answer()

    def _answer(self) -> None:
        while self._done:
            group = self._done.popleft()
            self._waiting -= len(group.writes)
            for write, result in zip(group.writes, group.results, strict=True):
                future: Future[Any] | None = write[0]
                if future is None or future.done():  # nobody waits, or the caller was cancelled
                    continue
                if type(result) is int or not isinstance(result, BaseException):
                    future.set_result(result)
                else:
                    future.set_exception(result)
            self._told(group)
        if not self._is_due:  # behind the callers that have their answers now
            self._hand_over_later()
