"""SIGINT (Ctrl-C) and SIGTERM during a command that sends or receives.

The first signal ends the work early: the command closes what it opened, reports what was done, and exits with 128 + the
number of the signal. The second signal has the default action of the system and ends the process at once, also while
the event loop is blocked by a terminal, a pipe or a disk.

    opening ── signal ──▶ the command is cancelled: nothing was done
    working ── signal ──▶ the work ends, the command goes on with its report
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from anabranch.cli.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """The first signal of one command. `signal` is None until it comes."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled_by_signal: asyncio.Task[Any] | None = None

    @property
    def is_set(self) -> bool:
        return self.signal is not None

    def check(self, done: str) -> None:
        """Raises Interrupted after a signal."""
        if self.signal is not None:
            raise Interrupted(self.signal, done)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handles the signals; a thread other than the main one gets none."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self._on_signal) for one in SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def cancels_this_task(self) -> None:
        """Until the work begins, a signal cancels the calling task."""
        self._loop = asyncio.get_running_loop()
        self._cancelled_by_signal = asyncio.current_task()
        if self.is_set:
            self._wake()

    def is_polled(self) -> None:
        """From now on a signal cancels nothing, because the caller looks at `signal` itself."""
        self._cancelled_by_signal = None

    async def ends(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs the work until its end or a signal. From then on a signal cancels nothing: closing is not disturbed."""
        if self.is_set:
            return
        task = asyncio.get_running_loop().create_task(work())
        self._cancelled_by_signal = task
        try:
            await task
        except asyncio.CancelledError:
            if not self.is_set:
                raise
        finally:
            self._cancelled_by_signal = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Runs between two instructions of the main thread, whatever it does."""
        for one in SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        self.signal = number
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._cancelled_by_signal is not None:
            self._cancelled_by_signal.cancel()
