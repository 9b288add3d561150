"""One topic for administrators: properties, unload, trim, compaction, single messages, internal stats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.errors import NotOfThisKind, SubscriptionNotFound, TopicNotFound
from anabranch.broker.services import Services
from anabranch.broker.stats.topic_stats import internal_stats
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.backlog_quota import bytes_after
from anabranch.broker.topic.topic import Topic
from anabranch.interbroker.peer_calls import peer_call
from anabranch.model.errors import NotFound
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.storage.topic.topic_log import StoredEntry

PEEK_MAX = 100_000
MESSAGE_BYTES = 1


class TopicFinder:
    """Finds topics by name and loads them; finds the partitions of a topic."""

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services

    async def one(self, topic: str) -> Topic:
        """A persistent topic without partitions; TopicNotFound, NotOfThisKind."""
        services, name = self._services(), TopicName.parse(topic)
        if await services.catalog.partitions(name):
            raise NotOfThisKind(f"{name} is partitioned: name one of its partitions")
        if not name.is_persistent:
            raise NotOfThisKind(f"{name} is not persistent")
        try:
            found = await services.topics.get(name, create=False)
        except TopicNotFound as error:
            raise TopicNotFound(f"Topic {name} not found") from error
        assert isinstance(found, Topic)
        return found

    async def parts(self, topic: str) -> list[TopicName]:
        """The partitions of a topic, on all brokers; empty for a topic without partitions."""
        name = TopicName.parse(topic)
        return [name.partition(index) for index in range(await self.partitions(topic))]

    async def partitions(self, topic: str) -> int:
        return await self._services().catalog.partitions(TopicName.parse(topic))

    async def subscription(self, topic: str, name: str) -> tuple[Topic, Subscription]:
        found = await self.one(topic)
        return found, subscription_of(found, name)


def subscription_of(topic: Topic, name: str) -> Subscription:
    found = topic.subscriptions.get(name)
    if found is None:
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic.name}")
    return found


class TopicMaintenance:
    """Calls for a partitioned topic are made for each partition, on the broker that serves it."""

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._finder = TopicFinder(services)
        self._routing = OwnerRouting(services)

    # -- properties

    async def properties(self, topic: str) -> dict[str, str]:
        if await self._finder.partitions(topic):
            record = await self._services().catalog.partitioned_record(TopicName.parse(topic))
            return dict(record.get("properties", {}))
        return (await self._finder.one(topic)).log.properties

    async def add_properties(self, topic: str, added: Mapping[str, str]) -> None:
        await self._change_properties(topic, lambda known: {**known, **added})

    async def remove_property(self, topic: str, key: str) -> None:
        await self._change_properties(topic, lambda known: {name: text for name, text in known.items() if name != key})

    async def _change_properties(self, topic: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        if await self._finder.partitions(topic):
            await self._services().catalog.change_partitioned(TopicName.parse(topic), change)
        else:
            found = await self._finder.one(topic)
            await found.log.set_properties(change(found.log.properties))

    # -- maintenance

    @peer_call("care.unload")
    async def unload(self, topic: str) -> None:
        """Closes the topic; its clients reconnect and load it again."""
        if parts := await self._finder.parts(topic):
            await self._routing.call_each(parts, self.unload)
            return
        topics, name = self._services().topics, TopicName.parse(topic)
        if name.is_persistent:
            name = (await self._finder.one(topic)).name
        elif topics.loaded(name) is None:
            if name.partition_index >= 0:
                return
            raise TopicNotFound(f"Topic {name} not found")
        await topics.close(name, self._services().address)

    @peer_call("care.trim")
    async def trim(self, topic: str) -> None:
        """Deletes consumed messages that are not retained, also of the open ledger."""
        if parts := await self._finder.parts(topic):
            await self._routing.call_each(parts, self.trim)
            return
        one = await self._finder.one(topic)
        if not one.log.is_terminated:
            await one.log.roll()
        await one.log.trim()

    @peer_call("care.truncate")
    async def truncate(self, topic: str) -> None:
        """Moves all subscriptions to the end and deletes consumed messages."""
        if parts := await self._finder.parts(topic):
            await self._routing.call_each(parts, self.truncate)
            return
        one = await self._finder.one(topic)
        for subscription in list(one.subscriptions.values()):
            subscription.skip_to(one.log.last_position)
        await self.trim(topic)

    @peer_call("care.compact")
    async def compact(self, topic: str) -> None:
        """Starts compaction, on every partition."""
        if parts := await self._finder.parts(topic):
            await self._routing.call_each(parts, self.compact)
        else:
            (await self._finder.one(topic)).compact()

    async def compaction(self, topic: str) -> dict[str, str]:
        stats = (await self._finder.one(topic)).compactor.stats
        return {"status": stats.status.value, "lastError": stats.last_error}

    async def terminate_partitions(self, topic: str) -> list[Position]:
        if not (parts := await self._finder.parts(topic)):
            raise NotOfThisKind(f"{topic} is not partitioned")
        return [Position(*last) for last in await self._routing.call_each(parts, self.terminate_one)]

    @peer_call("care.terminated")
    async def terminate_one(self, topic: str) -> tuple[int, int]:
        """Terminates one topic; its last position."""
        last = await (await self._finder.one(topic)).terminate()
        return last.ledger, last.entry

    # -- single messages

    async def last_message(self, topic: str) -> tuple[Position, int]:
        """Position and, for a batch, the index of its last message (else -1)."""
        found = await self._finder.one(topic)
        last, index = await found.last_message()
        return (Position(found.log.after(last).ledger, -1), -1) if last == EARLIEST else (last, index)

    async def message_at(self, topic: str, publish_ms: int) -> Position:
        """First message published at or after the time; one past the last if all are older."""
        found = await self._finder.one(topic)
        return EARLIEST if publish_ms <= 0 else await found.log.position_at_time(publish_ms)

    async def message_by_index(self, topic: str, index: int) -> Position:
        """Position of the entry with the message of that index: how many messages were stored before it since the topic
        exists. Of a message that retention has deleted, the first one that is left; NotFound at or behind the end."""
        log = (await self._finder.one(topic)).log
        if not 0 <= index < log.chain.messages_ever:
            raise NotFound(f"Message not found for index {index}")
        for info in list(log.chain):
            if index < info.messages_before + info.messages:
                low, high = 0, info.entries - 1  # the first entry that ends behind the message
                while low < high:
                    middle = (low + high) // 2
                    if await log.messages_upto(Position(info.id, middle)) > index:
                        high = middle
                    else:
                        low = middle + 1
                return Position(info.id, low)
        raise NotFound(f"Message not found for index {index}")

    async def message(self, topic: str, position: Position) -> StoredEntry:
        return await self._read(await self._finder.one(topic), position)

    async def examine(self, topic: str, from_earliest: bool, number: int) -> StoredEntry:
        """The n-th entry from the beginning or the end; n is clamped to the existing entries."""
        found = await self._finder.one(topic)
        chain = found.log.chain
        if not chain.entries:
            raise NotFound("Could not examine messages due to the total message is zero")
        left = min(max(number, 1), chain.entries)
        left = left if from_earliest else chain.entries - left + 1
        for info in list(chain):
            if left <= info.entries:
                return await self._read(found, Position(info.id, left - 1))
            left -= info.entries
        raise AssertionError("the chain counts its entries")

    async def peek(self, topic: str, subscription: str, number: int) -> StoredEntry:
        """The n-th entry that the subscription has not acknowledged. Changes nothing."""
        found, looked_at = await self._finder.subscription(topic, subscription)
        cursor = looked_at.cursor
        if not 1 <= number <= min(cursor.backlog_entries, PEEK_MAX):
            raise NotFound("Message not found")
        position = cursor.first_unacked()
        for _ in range(number - 1):
            position = cursor.next_unacked(found.log.after(position))
        return await self._read(found, position)

    async def _read(self, topic: Topic, position: Position) -> StoredEntry:
        if topic.log.chain.contains(position):
            found = await topic.log.read(position, 1, MESSAGE_BYTES, position)
            if found and found[0].position == position:
                return found[0]
        raise NotFound("Message not found")

    # -- stats

    async def backlog_size(self, topic: str, position: Position) -> int:
        """Bytes after a position."""
        found = await self._finder.one(topic)
        return 0 if position == LATEST else bytes_after(found.log.chain, position)

    async def internal_stats(self, topic: str) -> dict[str, Any]:
        """Internal stats of each partition of a topic."""
        parts = await self._finder.parts(topic)
        if not parts:
            raise TopicNotFound(f"Partitioned Topic {TopicName.parse(topic)} not found")
        figures = await self._routing.call_each(parts, self.topic_internal_stats)
        return {
            "metadata": {"partitions": len(parts), "deleted": False},
            "partitions": dict(zip(map(str, parts), figures, strict=True)),
        }

    @peer_call("care.inner_stats")
    async def topic_internal_stats(self, topic: str) -> dict[str, Any]:
        """Internal stats of one topic."""
        return internal_stats(await self._finder.one(topic))

    @peer_call("care.internal_info")
    async def internal_info(self, topic: str) -> dict[str, Any]:
        if parts := await self._finder.parts(topic):
            infos = await self._routing.call_each(parts, self.internal_info)
            return {"version": 0, "partitions": dict(zip(map(str, parts), infos, strict=True))}
        return _info(await self._finder.one(topic))

    async def offline_backlog(self, topic: str) -> dict[str, Any]:
        """Pulsar estimates this without loading the topic; here the topic is loaded."""
        found = await self._finder.one(topic)
        cursors = {
            one.name: {"backlog": one.cursor.backlog_entries, "cursorLedgerId": -1}
            for one in found.subscriptions.values()
        }
        return {
            "storageSize": found.log.total_bytes,
            "totalMessages": found.log.total_messages,
            "messageBacklog": sum(one["backlog"] for one in cursors.values()),
            "cursorDetails": cursors,
        }


def _info(topic: Topic) -> dict[str, Any]:
    return {
        "version": topic.log.epoch,
        "ledgers": [
            {"ledgerId": info.id, "entries": info.entries, "size": info.bytes, "timestamp": info.sealed_at_ms}
            for info in topic.log.chain
        ],
        "cursors": {
            one.name: {
                "version": 0,
                "cursorsLedgerId": -1,
                "markDelete": {"ledgerId": one.mark_delete.ledger, "entryId": one.mark_delete.entry},
            }
            for one in topic.subscriptions.values()
            if one.is_durable
        },
    }
