"""Regular topics, partitioned or not: create, delete, stats, maintenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.admin.group import Group, Names, Objects
from anabranch.admin.paths import lookup_url, topic_path, topic_url, topics_url


class Topics(Group):
    """Named in any spelling: `orders`, `acme/shop/orders`, `persistent://acme/shop/orders`."""

    async def list(self, namespace: str, *, domain: str = "persistent") -> Names:
        """Regular topics, partitions one by one; `scalable_topics.list` has the scalable ones."""
        return await self._names("GET", topics_url(domain, namespace))

    async def list_partitioned(self, namespace: str, *, domain: str = "persistent") -> Names:
        """Partitioned topics of a namespace."""
        return await self._names("GET", topics_url(domain, namespace, "partitioned"))

    async def create(
        self,
        topic: str,
        *,
        partitions: int = 0,
        properties: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """`partitions=0`: a topic without partitions, which cannot get any later. `exist_ok`: leaves an existing topic
        as it is, if it has as many partitions."""
        proof = topic_url(topic, "partitions")
        body: Any = dict(properties) if properties else None
        if partitions:
            body = {"partitions": partitions, "properties": body} if properties else partitions
        await self._create(
            "PUT",
            proof if partitions else topic_url(topic),
            body,
            exist_ok=exist_ok,
            proof=proof,
            is_same=lambda found: isinstance(found, dict) and found.get("partitions", 0) == partitions,
        )

    async def delete(self, topic: str, *, force: bool = False, partitioned: bool = False) -> None:
        """`force`: also while clients are connected. `partitioned`: the topic with all its partitions."""
        path = topic_url(topic, "partitions") if partitioned else topic_url(topic)
        await self._done("DELETE", path, query={"force": force})

    async def partitions(self, topic: str) -> int:
        """How many; 0 for a topic that is not partitioned."""
        found = await self._object("GET", topic_url(topic, "partitions"))
        return int(found.get("partitions", 0))

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """`partitions`: how many there are then."""
        await self._done("POST", topic_url(topic, "partitions"), partitions)

    async def create_missed_partitions(self, topic: str) -> None:
        """Creates partitions that do not exist, for example after an interrupted creation."""
        await self._done("POST", topic_url(topic, "createMissedPartitions"))

    async def terminate(self, topic: str) -> Any:
        """Accepts no more messages; returns the id of the last one."""
        return await self._value("POST", topic_url(topic, "terminate"))

    async def terminate_partitions(self, topic: str) -> Any:
        """Terminates every partition; returns the last message id of each."""
        return await self._value("POST", topic_url(topic, "terminate", "partitions"))

    # -- stats and messages

    async def stats(self, topic: str, *, precise_backlog: bool = False) -> dict[str, Any]:
        """Rates, producers, subscriptions and storage of a topic that is not partitioned."""
        return await self._object("GET", topic_url(topic, "stats"), query={"getPreciseBacklog": precise_backlog})

    async def partitioned_stats(self, topic: str, *, per_partition: bool = True) -> dict[str, Any]:
        """The same summed up over all partitions, and of each if `per_partition` is set."""
        return await self._object("GET", topic_url(topic, "partitioned-stats"), query={"perPartition": per_partition})

    async def internal_stats(self, topic: str) -> dict[str, Any]:
        """Ledgers and cursors."""
        return await self._object("GET", topic_url(topic, "internalStats"))

    async def partitioned_internal_stats(self, topic: str) -> dict[str, Any]:
        """Ledgers and cursors of each partition."""
        return await self._object("GET", topic_url(topic, "partitioned-internalStats"))

    async def internal_info(self, topic: str) -> dict[str, Any]:
        """Ledgers and cursors of the topic, or of each of its partitions."""
        return await self._object("GET", topic_url(topic, "internal-info"))

    async def backlog(self, topic: str) -> dict[str, Any]:
        """Messages, bytes and cursors of the topic; the topic is loaded for it."""
        return await self._object("GET", topic_url(topic, "backlog"))

    async def backlog_size(self, topic: str, message_id: Mapping[str, int]) -> int:
        """Bytes behind a position, which has `ledgerId` and `entryId`."""
        return await self._number("PUT", topic_url(topic, "backlogSize"), dict(message_id))

    async def last_message_id(self, topic: str) -> dict[str, Any]:
        """Position of the last message."""
        return await self._object("GET", topic_url(topic, "lastMessageId"))

    async def message_id_at(self, topic: str, timestamp_ms: int) -> dict[str, Any]:
        """Of the first message at or after a time."""
        return await self._object("GET", topic_url(topic, "messageid", str(timestamp_ms)))

    async def message_id_by_index(self, topic: str, index: int) -> dict[str, Any]:
        """Of the message with so many messages before it since the topic exists; of the first one that is left if it
        was deleted."""
        return await self._object("GET", topic_url(topic, "getMessageIdByIndex"), query={"index": index})

    async def message(self, topic: str, ledger: int, entry: int) -> bytes:
        """The payload of an entry."""
        return (await self._exchange.call("GET", topic_url(topic, "ledger", str(ledger), "entry", str(entry)))).body

    async def messages(self, topic: str, *, count: int = 50) -> Objects:
        """The newest messages, the newest first, with the first 4 KiB of each payload. Nothing is acknowledged."""
        return await self._objects("GET", f"/anabranch/v1/{topic_path(topic)}/messages", query={"count": count})

    async def message_count(self, topic: str, *, time_ms: int = 0) -> dict[str, Any]:
        """`total` of the stored messages, and those `from` a time on."""
        return await self._object("GET", f"/anabranch/v1/{topic_path(topic)}/messages/count", query={"time": time_ms})

    async def message_page(
        self,
        topic: str,
        *,
        count: int = 50,
        time_ms: int | None = None,
        position: str | None = None,
        after: str | None = None,
        preview: int | None = None,
    ) -> dict[str, Any]:
        """`messages`, the oldest first, from a time or a position (`ledger:entry`) on, or where another page ended
        (`after`: its `next`). `isEnd`: there are no more now."""
        query = {"count": count, "time": time_ms, "position": position, "after": after}
        query |= {"preview": preview}  # bytes of a payload; above 4 KiB with a position and count=1
        return await self._object("GET", f"/anabranch/v1/{topic_path(topic)}/messages/page", query=query)

    async def examine(self, topic: str, *, start: str = "latest", number: int = 1) -> bytes:
        """The payload of one message, counted from either end."""
        query = {"initialPosition": start, "messagePosition": number}
        return (await self._exchange.call("GET", topic_url(topic, "examinemessage"), query=query)).body

    # -- maintenance

    async def compact(self, topic: str) -> None:
        """Starts it; `compaction` has its status."""
        await self._done("PUT", topic_url(topic, "compaction"))

    async def compaction(self, topic: str) -> dict[str, Any]:
        """Status of the last compaction, and its error if it failed."""
        return await self._object("GET", topic_url(topic, "compaction"))

    async def unload(self, topic: str) -> None:
        """Closes it; its clients reconnect."""
        await self._done("PUT", topic_url(topic, "unload"))

    async def trim(self, topic: str) -> None:
        """Drops consumed messages that are not retained."""
        await self._done("POST", topic_url(topic, "trim"))

    async def truncate(self, topic: str) -> None:
        """Skips all backlogs and drops their messages."""
        await self._done("DELETE", topic_url(topic, "truncate"))

    async def expire_all(self, topic: str, older_than_s: int) -> None:
        """Messages older than this count as consumed, for every subscription."""
        await self._done("POST", topic_url(topic, "all_subscription", "expireMessages", str(older_than_s)))

    async def properties(self, topic: str) -> dict[str, Any]:
        """Properties of the topic."""
        return await self._object("GET", topic_url(topic, "properties"))

    async def add_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        """Adds properties to those that are set."""
        await self._done("PUT", topic_url(topic, "properties"), dict(properties))

    async def remove_property(self, topic: str, key: str) -> None:
        """Removes one property."""
        await self._done("DELETE", topic_url(topic, "properties"), query={"key": key})

    async def policy(self, topic: str, name: str, method: str = "GET", value: Any = None) -> Any:
        """A policy of the topic, by the name and method of REST; see `TopicPolicies`."""
        return await self._value(method, topic_url(topic, name), value)

    # -- lookup and publishing

    async def lookup(self, topic: str, *, authoritative: bool = False) -> dict[str, Any]:
        """The broker that serves it."""
        path = lookup_url("topic", topic)
        return await self._object("GET", path, query={"authoritative": authoritative})

    async def lookup_destination(self, topic: str) -> dict[str, Any]:
        """The same, by its old name."""
        return await self._object("GET", lookup_url("destination", topic))

    async def bundle(self, topic: str) -> str:
        """The hash range it is placed by."""
        return await self._text("GET", lookup_url("topic", topic, "bundle"))

    async def publish(
        self, topic: str, messages: Sequence[Mapping[str, Any]], *, producer_name: str | None = None
    ) -> dict[str, Any]:
        """Messages whose payload is text, each with `payload` and perhaps `key`, `properties`, `eventTime`."""
        body: dict[str, Any] = {"messages": [dict(one) for one in messages]}
        if producer_name is not None:
            body["producerName"] = producer_name
        return await self._object("POST", f"/topics/{topic_path(topic)}", body)
