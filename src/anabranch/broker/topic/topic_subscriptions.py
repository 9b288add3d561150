"""Subscriptions of one persistent topic and their cursors: one of each per name.

A reader's subscription is not durable: it ends with its last consumer, and its cursor is deleted. A reader whose client
did not reconnect after a seek is deleted by the second sweep that finds it without a consumer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping

from anabranch.broker.errors import ConsumerBusy, SubscriptionNotFound
from anabranch.broker.subscription.consumer import Consumer
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.compaction import CURSOR as COMPACTION_CURSOR
from anabranch.model.errors import NotAllowed
from anabranch.model.position import Position
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.topic.topic_log import TopicLog

TYPES = "subscription-types"
"""Of the topic's state."""


class TopicSubscriptions:
    __slots__ = ("_abandoned", "_check_open", "_log", "_make", "_tasks", "by_name", "changing", "shared_types")

    def __init__(
        self,
        topic_log: TopicLog,
        make: Callable[[str, Cursor], Subscription],
        tasks: TaskOwner,
        check_open: Callable[[], None],
    ) -> None:
        """`check_open` raises while the topic is being closed."""
        self.by_name: dict[str, Subscription] = {}  # a plain dict, because it is iterated after every group commit
        self.changing = asyncio.Lock()  # held while cursors are created or deleted: two first subscribers share one
        self._log = topic_log
        self._make = make
        self._tasks = tasks
        self._check_open = check_open
        self.shared_types: dict[str, bool] = {}  # durable ones: whether the last consumers shared messages
        self._abandoned: set[str] = set()  # readers without a consumer, seen at the last sweep

    def load(self) -> None:
        saved = self._log.state(TYPES)
        self.shared_types = {str(name): bool(shared) for name, shared in json.loads(saved).items()} if saved else {}
        self.adopt(name for name in self._log.cursors if name != COMPACTION_CURSOR)

    def note_type(self, name: str, *, is_shared: bool) -> None:
        """A durable subscription has a consumer of this type. Stored with the next write of the topic's state: a
        migration asks for it after the consumers have left."""
        if self.shared_types.get(name) != is_shared:
            self.shared_types = {one: shared for one, shared in self.shared_types.items() if one in self.by_name}
            self.shared_types[name] = is_shared
            self._log.save_state_nowait(TYPES, json.dumps(self.shared_types).encode())

    def adopt(self, names: Iterable[str]) -> None:
        """Make subscriptions for existing cursors."""
        for name in names:
            self.by_name[name] = self._make(name, self._log.cursors[name])

    # -- state

    @property
    def durable_count(self) -> int:
        return sum(1 for one in self.by_name.values() if one.is_durable)

    @property
    def consumer_count(self) -> int:
        return sum(len(one.consumers) for one in self.by_name.values())

    @property
    def is_caught_up(self) -> bool:
        return not any(one.cursor.has_backlog for one in self.by_name.values())

    @property
    def has_abandoned(self) -> bool:
        """Whether the next sweep deletes readers, if they stay without a consumer."""
        return bool(self._abandoned)

    # -- creation

    async def create(
        self,
        name: str,
        start: Position,
        properties: Mapping[str, str],
        *,
        durable: bool,
        check_room: Callable[[int], None],
    ) -> Subscription:
        """The subscription of that name, created if missing. `check_room` receives the number of durable ones."""
        if name == COMPACTION_CURSOR:
            raise NotAllowed(f"{name} is reserved for compaction")
        async with self.changing:
            self._check_open()
            if name not in self.by_name:
                if durable:
                    check_room(self.durable_count)
                await self._log.delete_cursor(name)  # of a reader that left just before
                cursor = await self._log.create_cursor(name, start, properties, durable)
                self.by_name[name] = self._make(name, cursor)
            return self.by_name[name]

    # -- deletion

    def left(self, subscription: Subscription) -> None:
        """A consumer left: a reader's subscription is deleted with its last consumer."""
        name = subscription.name
        if not subscription.is_durable and not subscription.consumers and self.by_name.get(name) is subscription:
            del self.by_name[name]
            self._tasks.spawn(self._drop_cursor(name), f"drop reader {name}")

    async def remove(self, name: str, *, force: bool, by: Consumer | None = None) -> None:
        subscription = self.by_name.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"subscription {name!r} does not exist")
        if not force and any(consumer is not by for consumer in subscription.consumers):
            raise ConsumerBusy(f"subscription {name!r} has other consumers attached")
        if by is not None:
            subscription.detach(by)
        subscription.fence()
        del self.by_name[name]
        await self._drop_cursor(name)

    async def sweep(self) -> None:
        """Delete readers whose client did not reconnect after a seek."""
        idle_readers = {name for name, one in self.by_name.items() if not one.is_durable and not one.consumers}
        for name in idle_readers & self._abandoned:
            reader = self.by_name.get(name)  # may have changed during the await
            if reader is not None and not reader.is_durable and not reader.consumers:
                del self.by_name[name]
                await self._drop_cursor(name)
        self._abandoned = idle_readers

    async def _drop_cursor(self, name: str) -> None:
        """Delete the cursor of a deleted subscription, unless the name is used again meanwhile."""
        async with self.changing:
            self._check_open()
            if name not in self.by_name:
                await self._log.delete_cursor(name)
