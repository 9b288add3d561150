"""Subscriptions of regular topics and their cursors, for administrators.

Where Pulsar allows it, the name of a partitioned topic means all of its partitions; each is handled by its broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.admin.topic_maintenance import TopicFinder, subscription_of
from anabranch.broker.errors import NothingToDo, NotOfThisKind, TopicNotFound
from anabranch.broker.services import Services
from anabranch.interbroker.peer_calls import peer_call
from anabranch.model.errors import AlreadyExists, BadRequest, NotAllowed
from anabranch.model.names import TopicName, check_subscription_name
from anabranch.model.position import EARLIEST, LATEST, Position

SCAN_ENTRIES_MAX = 1_000_000
SCAN_STEP = 1_000


class SubscriptionAdmin:
    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._finder = TopicFinder(services)
        self._routing = OwnerRouting(services)

    async def _parts(self, topic: str, name: str) -> list[TopicName]:
        """The partitions of a topic. SubscriptionNotFound, before any is changed, unless all have the subscription."""
        parts = await self._finder.parts(topic)
        await self._routing.call_each(parts, self.check, name=name)
        return parts

    @peer_call("cursors.check")
    async def check(self, topic: str, name: str) -> None:
        """Raises SubscriptionNotFound."""
        await self._finder.subscription(topic, name)

    # -- existence

    @peer_call("cursors.names")
    async def names(self, topic: str) -> list[str]:
        if parts := await self._finder.parts(topic):
            return sorted({known for some in await self._routing.call_each(parts, self.names) for known in some})
        name = TopicName.parse(topic)
        if not name.is_persistent:
            return sorted((await self._services().topics.get(name, create=False)).subscriptions)
        return sorted((await self._finder.one(topic)).subscriptions)

    async def create(self, topic: str, name: str, position: Position, properties: Mapping[str, str]) -> None:
        """`position` is the first entry to deliver, EARLIEST or LATEST. Creates the topic if policy allows it."""
        check_subscription_name(name)
        await self._ensure_topic(topic)
        start, given = [position.ledger, position.entry], dict(properties)
        if parts := await self._finder.parts(topic):
            made = await self._routing.call_each(
                parts, self.create_on_topic, name=name, position=start, properties=given
            )
        else:
            made = [await self.create_on_topic(topic, name, start, given)]
        if not any(made):
            raise AlreadyExists("Subscription already exists for topic")

    @peer_call("cursors.make", idempotent=False)
    async def create_on_topic(
        self, topic: str, name: str, position: Sequence[int], properties: Mapping[str, str]
    ) -> bool:
        """On one topic; False if the subscription exists."""
        one = await self._finder.one(topic)
        if name in one.subscriptions:
            return False
        await one.create_subscription(name, one.resolve(Position(*position)), properties)
        return True

    @peer_call("cursors.durable")
    async def durable_subscriptions(self, topic: str) -> dict[str, dict[str, str]]:
        """Durable subscriptions of one topic, with their properties."""
        one = await self._finder.one(topic)
        return {sub.name: dict(sub.cursor.properties) for sub in one.subscriptions.values() if sub.is_durable}

    async def _ensure_topic(self, topic: str) -> None:
        """Creates the topic if it is missing and policy allows it."""
        parsed = TopicName.parse(topic)
        if not parsed.is_persistent:
            raise BadRequest("only consumers create subscriptions of non-persistent topics")
        services = self._services()
        try:
            if not await services.catalog.partitions_or_create(parsed, auto_create=True):
                await services.topics.get(parsed, create=True)
        except TopicNotFound as error:
            raise NotAllowed(f"Topic {parsed} not found, and it may not be created") from error

    @peer_call("cursors.delete", idempotent=False)
    async def delete(self, topic: str, name: str, force: bool) -> None:
        if await self._finder.parts(topic) and TopicName.parse(topic).is_persistent:
            await self._routing.call_each(await self._parts(topic, name), self.delete, name=name, force=force)
            return
        parsed = TopicName.parse(topic)
        if not parsed.is_persistent:
            await (await self._services().topics.get(parsed, create=False)).unsubscribe(name, force=force)
            return
        found, _ = await self._finder.subscription(topic, name)
        await found.unsubscribe(name, force=force)

    # -- properties

    @peer_call("cursors.properties")
    async def properties(self, topic: str, name: str) -> dict[str, str]:
        if parts := await self._parts(topic, name):
            found: dict[str, str] = (await self._routing.call_each(parts[:1], self.properties, name=name))[0]
            return found
        _, one = await self._finder.subscription(topic, name)
        return dict(one.cursor.properties)

    @peer_call("cursors.set_properties")
    async def set_properties(self, topic: str, name: str, properties: Mapping[str, str]) -> None:
        if parts := await self._parts(topic, name):
            await self._routing.call_each(parts, self.set_properties, name=name, properties=dict(properties))
            return
        _, one = await self._finder.subscription(topic, name)
        one.cursor.properties = properties
        await one.flush()

    # -- position

    async def skip(self, topic: str, name: str, count: int) -> None:
        """Skips the next `count` unacknowledged entries, or all if there are fewer."""
        found, one = await self._finder.subscription(topic, name)
        cursor = one.cursor
        if count <= 0 or not cursor.backlog_entries:
            return
        if count >= cursor.backlog_entries:
            one.skip_to(found.log.last_position)
        else:
            position = cursor.first_unacked()
            for _ in range(count - 1):
                position = cursor.next_unacked(found.log.after(position))
            one.skip_to(position)
        await one.flush()

    @peer_call("cursors.skip_all")
    async def skip_all(self, topic: str, name: str) -> None:
        if not TopicName.parse(topic).is_persistent:
            raise NotOfThisKind("a non-persistent topic has no backlog")
        if parts := await self._parts(topic, name):
            await self._routing.call_each(parts, self.skip_all, name=name)
            return
        found, one = await self._finder.subscription(topic, name)
        one.skip_to(found.log.last_position)
        await one.flush()

    @peer_call("cursors.reset_to_time")
    async def reset_to_time(self, topic: str, name: str, publish_ms: int) -> None:
        """Seeks to the first message published at or after the time. Consumers are disconnected and reconnect."""
        if parts := await self._parts(topic, name):
            await self._routing.call_each(parts, self.reset_to_time, name=name, publish_ms=publish_ms)
            return
        found, one = await self._finder.subscription(topic, name)
        await one.seek(await found.log.position_at_time(max(publish_ms, 0)))

    async def reset_to(self, topic: str, name: str, position: Position, excluded: bool) -> None:
        found, one = await self._finder.subscription(topic, name)
        start = found.resolve(position)
        if excluded and position not in (EARLIEST, LATEST) and found.log.chain.contains(start):
            start = found.log.after(start)
        await one.seek(start)

    async def expire_older(self, topic: str, name: str | None, seconds: int) -> None:
        """None: every subscription. NothingToDo if no message was old enough."""
        before_ms = self._services().clock.now_ms() - seconds * 1000
        if parts := await self._finder.parts(topic):
            expired = sum(await self._routing.call_each(parts, self.expire_on_topic, name=name, before_ms=before_ms))
        else:
            expired = await self.expire_on_topic(topic, name, before_ms)
        if not expired and name is not None:
            raise NothingToDo(f"Expire message by timestamp not issued on topic {topic} for subscription {name}")

    @peer_call("cursors.expire")
    async def expire_on_topic(self, topic: str, name: str | None, before_ms: int) -> int:
        """Number of expired entries of one topic."""
        found, expired = await self._finder.one(topic), 0
        first_kept = await found.log.position_at_time(before_ms)
        last = Position(first_kept.ledger, first_kept.entry - 1)
        chosen = list(found.subscriptions.values()) if name is None else [subscription_of(found, name)]
        for one in chosen:
            expired += one.expire_up_to(last)
            await one.flush()
        return expired

    async def expire_up_to(self, topic: str, name: str, position: Position) -> None:
        found, one = await self._finder.subscription(topic, name)
        if position > found.log.last_position or not one.expire_up_to(position):
            raise NothingToDo(f"Expire message by position not issued on topic {topic} for subscription {name}")
        await one.flush()

    # -- analysis

    async def analyze(self, topic: str, name: str, start: Position | None) -> dict[str, Any]:
        """Reads the backlog and counts; stops after a million entries (`aborted`)."""
        found, one = await self._finder.subscription(topic, name)
        cursor, log, read_bytes = one.cursor, found.log, self._services().settings.read_bytes
        position = max(cursor.first_unacked(), start) if start is not None else cursor.first_unacked()
        last, first_seen, last_seen = log.last_position, None, None
        entries = messages = scanned = 0
        while position <= last and scanned < SCAN_ENTRIES_MAX:
            step = await log.read(position, SCAN_STEP, read_bytes, last)
            if not step:
                break
            for entry in step:
                if not cursor.is_acked(entry.position):
                    entries += 1
                    messages += entry.messages
                    first_seen, last_seen = first_seen or entry.position, entry.position
            scanned += len(step)
            position = log.after(step[-1].position)
        answer: dict[str, Any] = {"entries": entries, "messages": messages, "markerMessages": 0}
        for outcome in ("Rejected", "Accepted", "Rescheduled"):
            answer[f"filter{outcome}Entries"] = entries if outcome == "Accepted" else 0
            answer[f"filter{outcome}Messages"] = messages if outcome == "Accepted" else 0
        answer["aborted"] = scanned >= SCAN_ENTRIES_MAX
        if first_seen is not None and last_seen is not None:
            answer |= {"firstMessageId": f"{first_seen.ledger}:{first_seen.entry}"}
            answer |= {"lastMessageId": f"{last_seen.ledger}:{last_seen.entry}"}
        return answer

    async def replicated(self, topic: str, name: str) -> dict[str, bool]:
        names = await self._parts(topic, name)
        if not names:
            names = [(await self._finder.subscription(topic, name))[0].name]
        return {str(one): False for one in names}
