"""The subscriptions of one persistent topic and the cursors behind them: one of each per name, whoever comes first.

A reader's subscription is not durable: it ends with its last consumer and its cursor goes behind it; one whose client
did not come back after a seek goes with the second sweep that finds it alone. Knows the topic's log and how a
subscription is made; must not know who may subscribe, or where.
"""

from __future__ import annotations

import asyncio
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


class TopicSubscriptions:
    __slots__ = ("_abandoned", "_check_open", "_log", "_make", "_tasks", "by_name", "changing")

    def __init__(
        self,
        topic_log: TopicLog,
        make: Callable[[str, Cursor], Subscription],
        tasks: TaskOwner,
        check_open: Callable[[], None],
    ) -> None:
        """`check_open` raises while the topic is being closed."""
        self.by_name: dict[str, Subscription] = {}  # a plain dict: it is walked after every group
        self.changing = asyncio.Lock()  # held while cursors are made or dropped: two first subscribers get one
        self._log = topic_log
        self._make = make
        self._tasks = tasks
        self._check_open = check_open
        self._abandoned: set[str] = set()  # readers without a consumer, seen at the last sweep

    def load(self) -> None:
        self.adopt(name for name in self._log.cursors if name != COMPACTION_CURSOR)

    def adopt(self, names: Iterable[str]) -> None:
        """Cursors that are there get their subscriptions."""
        for name in names:
            self.by_name[name] = self._make(name, self._log.cursors[name])

    # -- what there is

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
        """Will the next sweep drop readers, if they stay alone?"""
        return bool(self._abandoned)

    # -- coming

    async def create(
        self,
        name: str,
        start: Position,
        properties: Mapping[str, str],
        *,
        durable: bool,
        check_room: Callable[[int], None],
    ) -> Subscription:
        """The one of that name, made if there is none; `check_room` is told how many durable ones are there already."""
        if name == COMPACTION_CURSOR:
            raise NotAllowed(f"{name} is the name of the topic's own cursor")
        async with self.changing:
            self._check_open()
            if name not in self.by_name:
                if durable:
                    check_room(self.durable_count)
                await self._log.delete_cursor(name)  # of a reader that left a moment ago
                cursor = await self._log.create_cursor(name, start, properties, durable)
                self.by_name[name] = self._make(name, cursor)
            return self.by_name[name]

    # -- going

    def left(self, subscription: Subscription) -> None:
        """A consumer has left: a reader's subscription goes with its last one."""
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
        """Drop readers whose client did not come back after a seek."""
        lonely = {name for name, one in self.by_name.items() if not one.is_durable and not one.consumers}
        for name in lonely & self._abandoned:
            reader = self.by_name.get(name)  # others come and go while we wait
            if reader is not None and not reader.is_durable and not reader.consumers:
                del self.by_name[name]
                await self._drop_cursor(name)
        self._abandoned = lonely

    async def _drop_cursor(self, name: str) -> None:
        """The cursor of a subscription that is gone; not when its name was taken again meanwhile."""
        async with self.changing:
            self._check_open()
            if name not in self.by_name:
                await self._log.delete_cursor(name)
