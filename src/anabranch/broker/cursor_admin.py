"""What administrators may ask of a subscription: where it stands, and to stand elsewhere. Plain calls with full names;
HTTP is a skin over it. Where Pulsar allows it, a partitioned topic's name means all of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.broker.errors import NothingToDo, NotOfThisKind, TopicNotFound
from anabranch.broker.services import Services
from anabranch.broker.topic import Topic
from anabranch.broker.topic_admin import TopicShelf, subscription_of
from anabranch.model.errors import AlreadyExists, BadRequest, NotAllowed
from anabranch.model.names import TopicName, check_subscription_name
from anabranch.model.position import EARLIEST, LATEST, Position

SCAN_ENTRIES_MAX = 1_000_000
SCAN_STEP = 1_000


class CursorAdmin:
    """Implements `rest.topic_face.CursorFace`."""

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._shelf = TopicShelf(services)

    async def _both(self, topic: str, name: str) -> list[tuple[Topic, Any]]:
        """The subscription on the topic or on every partition; all of them must have it."""
        return [(one, subscription_of(one, name)) for one in await self._shelf.all(topic)]

    # -- there or not

    async def names(self, topic: str) -> list[str]:
        name = TopicName.parse(topic)
        if not name.is_persistent:
            return sorted((await self._services().topics.get(name, create=False)).subscriptions)
        return sorted({known for one in await self._shelf.all(topic) for known in one.subscriptions})

    async def create(self, topic: str, name: str, position: Position, properties: Mapping[str, str]) -> None:
        """On a missing topic that may be created, too."""
        check_subscription_name(name)
        topics = await self._for_creation(topic)
        if all(name in one.subscriptions for one in topics):
            raise AlreadyExists("Subscription already exists for topic")
        for one in topics:
            if name not in one.subscriptions:
                await one.create_subscription(name, one.resolve(position), properties)

    async def _for_creation(self, topic: str) -> list[Topic]:
        parsed = TopicName.parse(topic)
        if not parsed.is_persistent:
            raise BadRequest("subscriptions of non-persistent topics are made by their consumers only")
        services = self._services()
        try:
            if not await services.catalog.partitions_or_create(parsed, auto_create=True):
                await services.topics.get(parsed, create=True)
        except TopicNotFound as error:
            raise NotAllowed(f"Topic {parsed} not found, and it may not be created") from error
        return await self._shelf.all(topic)

    async def delete(self, topic: str, name: str, force: bool) -> None:
        parsed = TopicName.parse(topic)
        if not parsed.is_persistent:
            await (await self._services().topics.get(parsed, create=False)).unsubscribe(name, force=force)
            return
        for one, _ in await self._both(topic, name):
            await one.unsubscribe(name, force=force)

    # -- properties

    async def properties(self, topic: str, name: str) -> dict[str, str]:
        found: dict[str, str] = (await self._both(topic, name))[0][1].cursor.properties
        return found

    async def set_properties(self, topic: str, name: str, properties: Mapping[str, str]) -> None:
        for _, one in await self._both(topic, name):
            one.cursor.properties = properties
            await one.flush()

    # -- moving

    async def skip(self, topic: str, name: str, count: int) -> None:
        """Passes over the next unacknowledged entries; more than there are means all."""
        found, one = await self._shelf.subscription(topic, name)
        cursor = one.cursor
        if count <= 0 or not cursor.backlog_entries:
            return
        if count >= cursor.backlog_entries:
            one.pass_over(found.log.last_position)
        else:
            position = cursor.first_unacked()
            for _ in range(count - 1):
                position = cursor.next_unacked(found.log.after(position))
            one.pass_over(position)
        await one.flush()

    async def skip_all(self, topic: str, name: str) -> None:
        if not TopicName.parse(topic).is_persistent:
            raise NotOfThisKind("a non-persistent topic keeps nothing that could be skipped")
        for found, one in await self._both(topic, name):
            one.pass_over(found.log.last_position)
            await one.flush()

    async def reset_to_time(self, topic: str, name: str, publish_ms: int) -> None:
        """The first message published at or after comes next. Consumers are cut and come back."""
        for found, one in await self._both(topic, name):
            await one.seek(await found.log.position_at_time(max(publish_ms, 0)))

    async def reset_to(self, topic: str, name: str, position: Position, excluded: bool) -> None:
        found, one = await self._shelf.subscription(topic, name)
        start = found.resolve(position)
        if excluded and position not in (EARLIEST, LATEST) and found.log.chain.contains(start):
            start = found.log.after(start)
        await one.seek(start)

    async def expire_older(self, topic: str, name: str | None, seconds: int) -> None:
        """None: every subscription. NothingToDo when nothing was old enough."""
        before_ms = self._services().clock.now_ms() - seconds * 1000
        expired = 0
        for found in await self._shelf.all(topic):
            first_kept = await found.log.position_at_time(before_ms)
            last = Position(first_kept.ledger, first_kept.entry - 1)
            chosen = list(found.subscriptions.values()) if name is None else [subscription_of(found, name)]
            for one in chosen:
                expired += one.expire_up_to(last)
                await one.flush()
        if not expired and name is not None:
            raise NothingToDo(f"Expire message by timestamp not issued on topic {topic} for subscription {name}")

    async def expire_up_to(self, topic: str, name: str, position: Position) -> None:
        found, one = await self._shelf.subscription(topic, name)
        if position > found.log.last_position or not one.expire_up_to(position):
            raise NothingToDo(f"Expire message by position not issued on topic {topic} for subscription {name}")
        await one.flush()

    # -- looking

    async def analyze(self, topic: str, name: str, start: Position | None) -> dict[str, Any]:
        """Reads the backlog and counts; stops after a million entries and says so."""
        found, one = await self._shelf.subscription(topic, name)
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
        return {str(found.name): False for found, _ in await self._both(topic, name)}
