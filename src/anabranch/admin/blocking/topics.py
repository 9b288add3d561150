"""The blocking form of `anabranch.admin.topics`. Written by scripts/generate_blocking_admin.py; edit
that module, not this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.admin.blocking.group import Group, Names, Objects
from anabranch.admin.paths import lookup_url, topic_path, topic_url, topics_url


class Topics(Group):
    """Named in any spelling: `orders`, `acme/shop/orders`, `persistent://acme/shop/orders`."""

    def list(self, namespace: str, *, domain: str = "persistent") -> Names:
        """Regular topics, partitions one by one; `scalable_topics.list` has the scalable ones."""
        return self._names("GET", topics_url(domain, namespace))

    def list_partitioned(self, namespace: str, *, domain: str = "persistent") -> Names:
        """Partitioned topics of a namespace."""
        return self._names("GET", topics_url(domain, namespace, "partitioned"))

    def create(
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
        self._create(
            "PUT",
            proof if partitions else topic_url(topic),
            body,
            exist_ok=exist_ok,
            proof=proof,
            is_same=lambda found: isinstance(found, dict) and found.get("partitions", 0) == partitions,
        )

    def delete(self, topic: str, *, force: bool = False, partitioned: bool = False) -> None:
        """`force`: also while clients are connected. `partitioned`: the topic with all its partitions."""
        path = topic_url(topic, "partitions") if partitioned else topic_url(topic)
        self._done("DELETE", path, query={"force": force})

    def partitions(self, topic: str) -> int:
        """How many; 0 for a topic that is not partitioned."""
        found = self._object("GET", topic_url(topic, "partitions"))
        return int(found.get("partitions", 0))

    def add_partitions(self, topic: str, partitions: int) -> None:
        """`partitions`: how many there are then."""
        self._done("POST", topic_url(topic, "partitions"), partitions)

    def create_missed_partitions(self, topic: str) -> None:
        """Creates partitions that do not exist, for example after an interrupted creation."""
        self._done("POST", topic_url(topic, "createMissedPartitions"))

    def terminate(self, topic: str) -> Any:
        """Accepts no more messages; returns the id of the last one."""
        return self._value("POST", topic_url(topic, "terminate"))

    def terminate_partitions(self, topic: str) -> Any:
        """Terminates every partition; returns the last message id of each."""
        return self._value("POST", topic_url(topic, "terminate", "partitions"))

    # -- stats and messages

    def stats(self, topic: str, *, precise_backlog: bool = False) -> dict[str, Any]:
        """Rates, producers, subscriptions and storage of a topic that is not partitioned."""
        return self._object("GET", topic_url(topic, "stats"), query={"getPreciseBacklog": precise_backlog})

    def partitioned_stats(self, topic: str, *, per_partition: bool = True) -> dict[str, Any]:
        """The same summed up over all partitions, and of each if `per_partition` is set."""
        return self._object("GET", topic_url(topic, "partitioned-stats"), query={"perPartition": per_partition})

    def internal_stats(self, topic: str) -> dict[str, Any]:
        """Ledgers and cursors."""
        return self._object("GET", topic_url(topic, "internalStats"))

    def partitioned_internal_stats(self, topic: str) -> dict[str, Any]:
        """Ledgers and cursors of each partition."""
        return self._object("GET", topic_url(topic, "partitioned-internalStats"))

    def internal_info(self, topic: str) -> dict[str, Any]:
        """Ledgers and cursors of the topic, or of each of its partitions."""
        return self._object("GET", topic_url(topic, "internal-info"))

    def backlog(self, topic: str) -> dict[str, Any]:
        """Messages, bytes and cursors of the topic; the topic is loaded for it."""
        return self._object("GET", topic_url(topic, "backlog"))

    def backlog_size(self, topic: str, message_id: Mapping[str, int]) -> int:
        """Bytes behind a position, which has `ledgerId` and `entryId`."""
        return self._number("PUT", topic_url(topic, "backlogSize"), dict(message_id))

    def last_message_id(self, topic: str) -> dict[str, Any]:
        """Position of the last message."""
        return self._object("GET", topic_url(topic, "lastMessageId"))

    def message_id_at(self, topic: str, timestamp_ms: int) -> dict[str, Any]:
        """Of the first message at or after a time."""
        return self._object("GET", topic_url(topic, "messageid", str(timestamp_ms)))

    def message_id_by_index(self, topic: str, index: int) -> dict[str, Any]:
        """Of the message with so many messages before it since the topic exists; of the first one that is left if it
        was deleted."""
        return self._object("GET", topic_url(topic, "getMessageIdByIndex"), query={"index": index})

    def message(self, topic: str, ledger: int, entry: int) -> bytes:
        """The payload of an entry."""
        return (self._exchange.call("GET", topic_url(topic, "ledger", str(ledger), "entry", str(entry)))).body

    def messages(self, topic: str, *, count: int = 50) -> Objects:
        """The newest messages, the newest first, with the first 4 KiB of each payload. Nothing is acknowledged."""
        return self._objects("GET", f"/anabranch/v1/{topic_path(topic)}/messages", query={"count": count})

    def message_count(self, topic: str, *, time_ms: int = 0) -> dict[str, Any]:
        """`total` of the stored messages, and those `from` a time on."""
        return self._object("GET", f"/anabranch/v1/{topic_path(topic)}/messages/count", query={"time": time_ms})

    def message_page(
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
        return self._object("GET", f"/anabranch/v1/{topic_path(topic)}/messages/page", query=query)

    def examine(self, topic: str, *, start: str = "latest", number: int = 1) -> bytes:
        """The payload of one message, counted from either end."""
        query = {"initialPosition": start, "messagePosition": number}
        return (self._exchange.call("GET", topic_url(topic, "examinemessage"), query=query)).body

    # -- maintenance

    def compact(self, topic: str) -> None:
        """Starts it; `compaction` has its status."""
        self._done("PUT", topic_url(topic, "compaction"))

    def compaction(self, topic: str) -> dict[str, Any]:
        """Status of the last compaction, and its error if it failed."""
        return self._object("GET", topic_url(topic, "compaction"))

    def unload(self, topic: str) -> None:
        """Closes it; its clients reconnect."""
        self._done("PUT", topic_url(topic, "unload"))

    def trim(self, topic: str) -> None:
        """Drops consumed messages that are not retained."""
        self._done("POST", topic_url(topic, "trim"))

    def truncate(self, topic: str) -> None:
        """Skips all backlogs and drops their messages."""
        self._done("DELETE", topic_url(topic, "truncate"))

    def expire_all(self, topic: str, older_than_s: int) -> None:
        """Messages older than this count as consumed, for every subscription."""
        self._done("POST", topic_url(topic, "all_subscription", "expireMessages", str(older_than_s)))

    def properties(self, topic: str) -> dict[str, Any]:
        """Properties of the topic."""
        return self._object("GET", topic_url(topic, "properties"))

    def add_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        """Adds properties to those that are set."""
        self._done("PUT", topic_url(topic, "properties"), dict(properties))

    def remove_property(self, topic: str, key: str) -> None:
        """Removes one property."""
        self._done("DELETE", topic_url(topic, "properties"), query={"key": key})

    def policy(self, topic: str, name: str, method: str = "GET", value: Any = None) -> Any:
        """A policy of the topic, by the name and method of REST; see `TopicPolicies`."""
        return self._value(method, topic_url(topic, name), value)

    # -- lookup and publishing

    def lookup(self, topic: str, *, authoritative: bool = False) -> dict[str, Any]:
        """The broker that serves it."""
        path = lookup_url("topic", topic)
        return self._object("GET", path, query={"authoritative": authoritative})

    def lookup_destination(self, topic: str) -> dict[str, Any]:
        """The same, by its old name."""
        return self._object("GET", lookup_url("destination", topic))

    def bundle(self, topic: str) -> str:
        """The hash range it is placed by."""
        return self._text("GET", lookup_url("topic", topic, "bundle"))

    def publish(
        self, topic: str, messages: Sequence[Mapping[str, Any]], *, producer_name: str | None = None
    ) -> dict[str, Any]:
        """Messages whose payload is text, each with `payload` and perhaps `key`, `properties`, `eventTime`."""
        body: dict[str, Any] = {"messages": [dict(one) for one in messages]}
        if producer_name is not None:
            body["producerName"] = producer_name
        return self._object("POST", f"/topics/{topic_path(topic)}", body)
