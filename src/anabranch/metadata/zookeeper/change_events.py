"""ZooKeeper's watch events to changes of the port. Does no I/O: the lookup is given to the constructor.

An event has a type and a path only. Whether a created or changed node is a key or an intermediate node takes a read; so
events wait in a queue, in order, until the first one's read is answered. A deletion is read too, because the answer
arrives after all events of the same transaction. Paths without a watch are not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from anabranch.metadata.interface import Change, ChangeKind
from anabranch.metadata.watch_fanout import WatchFanout
from anabranch.metadata.zookeeper.paths import PathMapping
from anabranch.metadata.zookeeper.records import INTERMEDIATE_MAX
from anabranch.zookeeper.jute import Event, EventType

QUEUE_MAX = 10_000
_TYPES = frozenset((EventType.CREATED, EventType.DELETED, EventType.CHANGED))
CREATED, MODIFIED, DELETED = ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED


class NodeState(NamedTuple):
    """What a read of the node showed."""

    exists: bool
    is_intermediate: bool


MISSING = NodeState(exists=False, is_intermediate=False)


class _QueuedEvent:
    __slots__ = ("event", "key", "was_intermediate", "state")

    def __init__(self, event: Event, key: str, was_intermediate: bool) -> None:
        self.event, self.key, self.was_intermediate = event, key, was_intermediate
        self.state: NodeState | None = None


def change_of(kind: int, was_intermediate: bool, state: NodeState) -> ChangeKind | None:
    """The change of the port that an event means; None if the port shows no change."""
    if kind == EventType.DELETED:
        return None if was_intermediate else DELETED
    if not state.exists:  # deleted meanwhile; its deletion follows as another event
        return CREATED if kind == EventType.CREATED or was_intermediate else MODIFIED
    if state.is_intermediate:
        return DELETED if kind == EventType.CHANGED and not was_intermediate else None
    return CREATED if kind == EventType.CREATED or was_intermediate else MODIFIED


class ChangeEvents:
    def __init__(
        self,
        keys: PathMapping,
        watches: WatchFanout,
        is_known_intermediate: Callable[[str], bool],
        look_up: Callable[[str, Callable[[NodeState], None]], None],
    ) -> None:
        """`look_up(path, answer)` reads the node and calls `answer` later, or never if the connection is lost."""
        self._keys = keys
        self._watches = watches
        self._is_known_intermediate = is_known_intermediate
        self._look_up = look_up
        self._intermediate: set[str] = set()  # as of the published events; `is_known_intermediate` may be ahead of it
        self._queue: deque[_QueuedEvent] = deque()

    def on_gap(self) -> None:
        """Events may have been lost: publish INVALIDATED for the whole tree."""
        self._queue.clear()
        self._intermediate.clear()
        self._watches.publish([Change(ChangeKind.INVALIDATED, "/")])

    def on_event(self, event: Event) -> None:
        key = self._keys.key(event.path)
        if event.type not in _TYPES or not key:
            return
        if not self._watches.is_watched(key):
            self._intermediate.discard(event.path)
        elif len(self._queue) >= QUEUE_MAX or len(self._intermediate) >= INTERMEDIATE_MAX:
            self.on_gap()
        elif not self._merges(event):
            queued = _QueuedEvent(event, key, self._is_known_intermediate(event.path))
            self._queue.append(queued)
            self._look_up(event.path, lambda state: self._on_state(queued, state))

    def _merges(self, event: Event) -> bool:
        """Merge the event into the last one if both are of one transaction and key.

        A node that is replaced to change its session is one change. Servers before 3.9 do not send the transaction id.
        """
        if not self._queue or event.zxid <= 0:
            return False
        last = self._queue[-1]
        if (last.event.path, last.event.zxid) != (event.path, event.zxid) or event.type == EventType.DELETED:
            return False
        if last.event.type == EventType.DELETED:
            last.event = Event(EventType.CHANGED, event.path, event.zxid)
        return True

    def _on_state(self, queued: _QueuedEvent, state: NodeState) -> None:
        queued.state = state
        self._publish()

    def _publish(self) -> None:
        queue = self._queue
        while queue and (state := queue[0].state) is not None:
            queued = queue.popleft()
            path = queued.event.path
            was_intermediate = queued.was_intermediate or path in self._intermediate
            kind = change_of(queued.event.type, was_intermediate, state)
            if state.is_intermediate:
                self._intermediate.add(path)
            else:
                self._intermediate.discard(path)
            if kind is not None:
                self._watches.publish([Change(kind, queued.key)])
