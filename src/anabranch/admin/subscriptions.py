"""Subscriptions of regular topics: create, delete, seek, skip, expire, peek."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.admin.client import Answer
from anabranch.admin.group import Group, Names
from anabranch.admin.paths import subscription_url, topic_url


class Subscriptions(Group):
    async def list(self, topic: str) -> Names:
        """Names of a topic's durable subscriptions."""
        return await self._names("GET", topic_url(topic, "subscriptions"))

    async def create(
        self, topic: str, subscription: str, *, at: str | Mapping[str, int] = "latest", exist_ok: bool = False
    ) -> None:
        """`at`: "latest", "earliest", or a message id with `ledgerId` and `entryId`. `exist_ok`: leaves an existing one
        where it is."""
        await self._create(
            "PUT",
            subscription_url(topic, subscription),
            at if isinstance(at, str) else dict(at),
            exist_ok=exist_ok,
            proof=topic_url(topic, "subscriptions"),
            is_same=lambda found: isinstance(found, list) and subscription in found,
        )

    async def delete(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """`force`: also while consumers are connected."""
        await self._done("DELETE", subscription_url(topic, subscription), query={"force": force})

    async def skip(self, topic: str, subscription: str, count: int) -> None:
        """Acknowledges the next `count` messages."""
        await self._done("POST", subscription_url(topic, subscription, "skip", str(count)))

    async def skip_all(self, topic: str, subscription: str) -> None:
        """Its whole backlog."""
        await self._done("POST", subscription_url(topic, subscription, "skip_all"))

    async def seek_time(self, topic: str, subscription: str, timestamp_ms: int) -> None:
        """Moves the subscription to a publish time. Its consumers reconnect."""
        await self._done("POST", subscription_url(topic, subscription, "resetcursor", str(timestamp_ms)))

    async def seek_message(self, topic: str, subscription: str, message_id: Mapping[str, Any]) -> None:
        """`message_id` has `ledgerId`, `entryId` and perhaps `isExcluded`."""
        await self._done("POST", subscription_url(topic, subscription, "resetcursor"), dict(message_id))

    async def expire_time(self, topic: str, subscription: str, older_than_s: int) -> None:
        """Messages older than this count as consumed."""
        await self._done("POST", subscription_url(topic, subscription, "expireMessages", str(older_than_s)))

    async def expire_message(self, topic: str, subscription: str, message_id: Mapping[str, Any]) -> None:
        """Everything up to this message counts as consumed."""
        await self._done("POST", subscription_url(topic, subscription, "expireMessages"), dict(message_id))

    async def peek(self, topic: str, subscription: str, number: int = 1) -> Answer:
        """The n-th message of the backlog: its payload as `body`, the rest in `headers`. Changes nothing."""
        return await self._exchange.call("GET", subscription_url(topic, subscription, "position", str(number)))

    async def analyze_backlog(
        self, topic: str, subscription: str, message_id: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Reads the backlog, from a message on if one is given, and counts."""
        body = None if message_id is None else dict(message_id)
        return await self._object("POST", subscription_url(topic, subscription, "analyzeBacklog"), body)

    async def properties(self, topic: str, subscription: str) -> dict[str, Any]:
        """Properties of the subscription."""
        return await self._object("GET", subscription_url(topic, subscription, "properties"))

    async def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Replaces all of them."""
        await self._done("PUT", subscription_url(topic, subscription, "properties"), dict(properties))

    async def replicated(self, topic: str, subscription: str) -> dict[str, Any]:
        """The flag for tools: nothing is replicated."""
        return await self._object("GET", subscription_url(topic, subscription, "replicatedSubscriptionStatus"))

    async def set_replicated(self, topic: str, subscription: str, is_replicated: bool) -> None:
        """Stores the flag for tools: nothing is replicated."""
        await self._done("POST", subscription_url(topic, subscription, "replicatedSubscriptionStatus"), is_replicated)
