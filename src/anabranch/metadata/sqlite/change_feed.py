"""Changes of all processes to the watches of this one, and notifications to the sweep of dead sessions.

Runs in the event loop; reads take some ten microseconds on a separate connection. Changes reach the watches in commit
order. Groups of this process and notification messages are published directly if they follow on the last published
change; otherwise the event table is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from anabranch.metadata.interface import Change, StoreUnavailable
from anabranch.metadata.sqlite.event_log import read_message
from anabranch.metadata.sqlite.writer import Group, Operation, Writer
from anabranch.metadata.watch_fanout import TreeWatch, WatchFanout
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.logs import get_logger

POLL_S = 1.0  # in case a notification was lost
POLL_WITHOUT_INOTIFY_S = 0.05
_MARGIN_S = 0.05  # margin after a session's deadline

log = get_logger(__name__)


class ChangeFeed:
    def __init__(self, writer: Writer, submit: Callable[[Operation], None], clock: Clock) -> None:
        self._writer = writer
        self._submit = submit
        self._clock = clock
        self._watches = WatchFanout()
        self._seen = 0  # number of the last published change; meaningless without watches
        self._poll_s = POLL_S
        self._poll: Timer | None = None
        self._expiry: Timer | None = None
        self._sweeping: Operation | None = None  # at most one at a time

    def start(self) -> None:
        if not self._writer.notifier.listen(self._on_notified, self._sweep):
            self._poll_s = POLL_WITHOUT_INOTIFY_S
        self._poll_later()

    def close(self) -> None:
        for timer in (self._poll, self._expiry):
            if timer is not None:
                timer.cancel()
        self._writer.notifier.stop()
        self._watches.close()

    def watch(self, prefix: str) -> TreeWatch:
        if not self._watches:
            self._writer.notifier.set_notified(True)
            try:
                self._seen = self._writer.events.last()
            except sqlite3.Error as error:
                raise StoreUnavailable(f"cannot read metadata: {error}") from error
        return self._watches.add(prefix)

    def on_commit(self, group: Group) -> None:
        """A group of this process. Its notification may have been first; then its changes are published already."""
        if self._sweeping is not None and any(write is self._sweeping for write in group.writes):
            self._sweeping = None
        if not self._watches or not group.changes:
            return
        if group.base == self._seen:
            self._seen = group.base + len(group.changes)
            self._watches.publish(Change(kind, key) for kind, key, _ in group.changes)
        elif group.base > self._seen:
            self._catch_up()

    def _on_notified(self) -> None:
        """Publish the message if it is the next change; this is ten times faster than reading the table."""
        if not self._watches:
            self._writer.notifier.set_notified(False)
            return
        message = self._writer.notifier.message()
        if message:
            first, changes = read_message(message)
            if first == self._seen + 1:
                self._seen += len(changes)
                self._watches.publish(changes)
                return
            if first + len(changes) - 1 <= self._seen:
                return  # published already
        self._catch_up()

    def _catch_up(self) -> None:
        if not self._watches:
            return
        try:
            self._seen, changes = self._writer.events.after(self._seen)
        except sqlite3.Error as error:  # the next notification or poll continues here
            log.warning("metadata events not read; retrying", extra={"error": str(error)})
        else:
            self._watches.publish(changes)

    def _sweep(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._writer.sweep()
            self._submit(self._sweeping)
        self._expire_later()

    def _expire_later(self) -> None:
        """Sweep again when the first session of another process will have missed its deadline."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        try:
            deadline = self._writer.sessions.next_deadline()
        except OSError as error:  # the next poll tries again
            log.warning("metadata session files not read; retrying", extra={"error": str(error)})
            return
        if deadline is not None and deadline != float("inf"):
            wait_s = deadline - self._clock.monotonic()
            self._expiry = self._clock.call_later(max(0.0, wait_s) + _MARGIN_S, self._sweep)

    def _poll_later(self) -> None:
        def poll() -> None:
            self._catch_up()
            self._sweep()
            self._poll_later()

        self._poll = self._clock.call_later(self._poll_s, poll)
