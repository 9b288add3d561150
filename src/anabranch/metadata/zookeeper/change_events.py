"""From ZooKeeper's events to changes of the port.

An event names a path and no more. Whether a node that was created or changed is a key or only holds others takes a look
at it; so events wait in a row, in order, until the look at the first is done. After a deletion too: the answer comes
behind all events of the same transaction. What nobody watches is not looked at.
Knows no sockets: the looking is handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from anabranch.metadata.interface import Change, ChangeKind
from anabranch.metadata.watch_fanout import Watches
from anabranch.metadata.zookeeper.paths import Keys
from anabranch.metadata.zookeeper.records import HOLDERS_MAX
from anabranch.zookeeper.jute import Event, EventType

ROW_MAX = 10_000
_TYPES = frozenset((EventType.CREATED, EventType.DELETED, EventType.CHANGED))
CREATED, MODIFIED, DELETED = ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED


class Seen(NamedTuple):
    """What a look at the node showed."""

    exists: bool
    is_holder: bool


GONE = Seen(exists=False, is_holder=False)


class _Waiting:
    __slots__ = ("event", "key", "was_holder", "seen")

    def __init__(self, event: Event, key: str, was_holder: bool) -> None:
        self.event, self.key, self.was_holder = event, key, was_holder
        self.seen: Seen | None = None


def change_of(kind: int, was_holder: bool, seen: Seen) -> ChangeKind | None:
    """What one event means to those who see keys only; None: nothing."""
    if kind == EventType.DELETED:
        return None if was_holder else DELETED
    if not seen.exists:  # gone again, and its deletion will be told too
        return CREATED if kind == EventType.CREATED or was_holder else MODIFIED
    if seen.is_holder:
        return DELETED if kind == EventType.CHANGED and not was_holder else None
    return CREATED if kind == EventType.CREATED or was_holder else MODIFIED


class Changes:
    def __init__(
        self,
        keys: Keys,
        watches: Watches,
        is_known_holder: Callable[[str], bool],
        look: Callable[[str, Callable[[Seen], None]], None],
    ) -> None:
        """`look(path, answer)` asks the server and calls `answer` later, or never when the connection is lost."""
        self._keys = keys
        self._watches = watches
        self._is_known_holder = is_known_holder
        self._look = look
        self._holders: set[str] = set()  # as of what was published; what the store knows runs ahead of it
        self._row: deque[_Waiting] = deque()

    def missed(self) -> None:
        """Events may have been lost: everybody starts anew."""
        self._row.clear()
        self._holders.clear()
        self._watches.publish([Change(ChangeKind.INVALIDATED, "/")])

    def arrived(self, event: Event) -> None:
        key = self._keys.key(event.path)
        if event.type not in _TYPES or not key:
            return
        if not self._watches.is_watched(key):
            self._holders.discard(event.path)
        elif len(self._row) >= ROW_MAX or len(self._holders) >= HOLDERS_MAX:
            self.missed()
        elif not self._joins(event):
            waiting = _Waiting(event, key, self._is_known_holder(event.path))
            self._row.append(waiting)
            self._look(event.path, lambda seen: self._looked(waiting, seen))

    def _joins(self, event: Event) -> bool:
        """Did it come from the same transaction as the last one, on the same key? A node replaced by another, to live
        with another session, is one change. (Servers before 3.9 do not tell the transaction.)"""
        if not self._row or event.zxid <= 0:
            return False
        last = self._row[-1]
        if (last.event.path, last.event.zxid) != (event.path, event.zxid) or event.type == EventType.DELETED:
            return False
        if last.event.type == EventType.DELETED:
            last.event = Event(EventType.CHANGED, event.path, event.zxid)
        return True

    def _looked(self, waiting: _Waiting, seen: Seen) -> None:
        waiting.seen = seen
        self._publish()

    def _publish(self) -> None:
        row = self._row
        while row and (seen := row[0].seen) is not None:
            waiting = row.popleft()
            path = waiting.event.path
            was_holder = waiting.was_holder or path in self._holders
            kind = change_of(waiting.event.type, was_holder, seen)
            if seen.is_holder:
                self._holders.add(path)
            else:
                self._holders.discard(path)
            if kind is not None:
                self._watches.publish([Change(kind, waiting.key)])
