"""The blocking form of `anabranch.admin.subscriptions`. Written by scripts/generate_blocking_admin.py; edit
that module, not this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.admin.blocking.group import Group, Names
from anabranch.admin.client import Answer
from anabranch.admin.paths import subscription_url, topic_url


class Subscriptions(Group):
    def list(self, topic: str) -> Names:
        """Names of a topic's durable subscriptions."""
        return self._names("GET", topic_url(topic, "subscriptions"))

    def create(
        self, topic: str, subscription: str, *, at: str | Mapping[str, int] = "latest", exist_ok: bool = False
    ) -> None:
        """`at`: "latest", "earliest", or a message id with `ledgerId` and `entryId`. `exist_ok`: leaves an existing one
        where it is."""
        self._create(
            "PUT",
            subscription_url(topic, subscription),
            at if isinstance(at, str) else dict(at),
            exist_ok=exist_ok,
            proof=topic_url(topic, "subscriptions"),
            is_same=lambda found: isinstance(found, list) and subscription in found,
        )

    def delete(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """`force`: also while consumers are connected."""
        self._done("DELETE", subscription_url(topic, subscription), query={"force": force})

    def skip(self, topic: str, subscription: str, count: int) -> None:
        """Acknowledges the next `count` messages."""
        self._done("POST", subscription_url(topic, subscription, "skip", str(count)))

    def skip_all(self, topic: str, subscription: str) -> None:
        """Its whole backlog."""
        self._done("POST", subscription_url(topic, subscription, "skip_all"))

    def seek_time(self, topic: str, subscription: str, timestamp_ms: int) -> None:
        """Moves the subscription to a publish time. Its consumers reconnect."""
        self._done("POST", subscription_url(topic, subscription, "resetcursor", str(timestamp_ms)))

    def seek_message(self, topic: str, subscription: str, message_id: Mapping[str, Any]) -> None:
        """`message_id` has `ledgerId`, `entryId` and perhaps `isExcluded`."""
        self._done("POST", subscription_url(topic, subscription, "resetcursor"), dict(message_id))

    def expire_time(self, topic: str, subscription: str, older_than_s: int) -> None:
        """Messages older than this count as consumed."""
        self._done("POST", subscription_url(topic, subscription, "expireMessages", str(older_than_s)))

    def expire_message(self, topic: str, subscription: str, message_id: Mapping[str, Any]) -> None:
        """Everything up to this message counts as consumed."""
        self._done("POST", subscription_url(topic, subscription, "expireMessages"), dict(message_id))

    def peek(self, topic: str, subscription: str, number: int = 1) -> Answer:
        """The n-th message of the backlog: its payload as `body`, the rest in `headers`. Changes nothing."""
        return self._exchange.call("GET", subscription_url(topic, subscription, "position", str(number)))

    def analyze_backlog(
        self, topic: str, subscription: str, message_id: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Reads the backlog, from a message on if one is given, and counts."""
        body = None if message_id is None else dict(message_id)
        return self._object("POST", subscription_url(topic, subscription, "analyzeBacklog"), body)

    def properties(self, topic: str, subscription: str) -> dict[str, Any]:
        """Properties of the subscription."""
        return self._object("GET", subscription_url(topic, subscription, "properties"))

    def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Replaces all of them."""
        self._done("PUT", subscription_url(topic, subscription, "properties"), dict(properties))

    def replicated(self, topic: str, subscription: str) -> dict[str, Any]:
        """The flag for tools: nothing is replicated."""
        return self._object("GET", subscription_url(topic, subscription, "replicatedSubscriptionStatus"))

    def set_replicated(self, topic: str, subscription: str, is_replicated: bool) -> None:
        """Stores the flag for tools: nothing is replicated."""
        self._done("POST", subscription_url(topic, subscription, "replicatedSubscriptionStatus"), is_replicated)
