"""From the event table to the watches of this process, and from the doorbell to the sweep of dead sessions.

Everything here runs in the event loop; the reads are some ten microseconds on a connection of its own. Changes reach
the watches in commit order, whoever made them: own groups and messages in the bell directly when nothing lies between,
else from the table.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable

from anabranch.metadata.interface import Change, StoreUnavailable
from anabranch.metadata.sqlite.event_log import read_message
from anabranch.metadata.sqlite.writer import Group, Operation, Writer
from anabranch.metadata.watch_fanout import TreeWatch, Watches
from anabranch.runtime.clock import Clock, Timer

POLL_S = 1.0  # in case the kernel could not tell us
POLL_WITHOUT_INOTIFY_S = 0.05
_LATER_S = 0.05  # past the deadline of a session, and between two looks at the same one

log = logging.getLogger(__name__)


class ChangeFeed:
    def __init__(self, writer: Writer, submit: Callable[[Operation], None], clock: Clock) -> None:
        self._writer = writer
        self._submit = submit
        self._clock = clock
        self._watches = Watches()
        self._seen = 0  # number of the last change that went to the watches; meaningless while there are none
        self._poll_s = POLL_S
        self._poll: Timer | None = None
        self._expiry: Timer | None = None
        self._sweeping: Operation | None = None  # one at a time, however often there is reason

    def start(self) -> None:
        if not self._writer.bell.listen(self._rung, self._sweep):
            self._poll_s = POLL_WITHOUT_INOTIFY_S
        self._poll_later()

    def close(self) -> None:
        for timer in (self._poll, self._expiry):
            if timer is not None:
                timer.cancel()
        self._writer.bell.stop()
        self._watches.close()

    def watch(self, prefix: str) -> TreeWatch:
        if not self._watches:
            self._writer.bell.hear(True)
            try:
                self._seen = self._writer.events.last()
            except sqlite3.Error as error:
                raise StoreUnavailable(f"metadata was not read: {error}") from error
        return self._watches.add(prefix)

    def committed(self, group: Group) -> None:
        """A group of this process. The doorbell may have been faster: then the table has shown it already."""
        if self._sweeping is not None and any(write is self._sweeping for write in group.writes):
            self._sweeping = None
        if not self._watches or not group.changes:
            return
        if group.base == self._seen:
            self._seen = group.base + len(group.changes)
            self._watches.publish(Change(kind, key) for kind, key, _ in group.changes)
        elif group.base > self._seen:
            self._catch_up()

    def _rung(self) -> None:
        """The message in the bell is enough when it is the very next one: ten times faster than the table."""
        if not self._watches:
            self._writer.bell.hear(False)
            return
        message = self._writer.bell.message()
        if message:
            first, changes = read_message(message)
            if first == self._seen + 1:
                self._seen += len(changes)
                self._watches.publish(changes)
                return
            if first + len(changes) - 1 <= self._seen:
                return  # our own, told already
        self._catch_up()

    def _catch_up(self) -> None:
        if not self._watches:
            return
        try:
            self._seen, changes = self._writer.events.after(self._seen)
        except sqlite3.Error as error:  # the next ring or poll reads from where this one stopped
            log.warning("metadata events were not read", extra={"error": str(error)})
        else:
            self._watches.publish(changes)

    def _sweep(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._writer.sweep()
            self._submit(self._sweeping)
        self._expire_later()

    def _expire_later(self) -> None:
        """Look again when the first session of somebody else will have been silent for too long."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        try:
            deadline = self._writer.sessions.next_deadline()
        except OSError as error:  # the next poll looks again
            log.warning("metadata sessions were not read", extra={"error": str(error)})
            return
        if deadline is not None and deadline != float("inf"):
            wait_s = deadline - self._clock.monotonic()
            self._expiry = self._clock.call_later(max(0.0, wait_s) + _LATER_S, self._sweep)

    def _poll_later(self) -> None:
        def poll() -> None:
            self._catch_up()
            self._sweep()
            self._poll_later()

        self._poll = self._clock.call_later(self._poll_s, poll)
