"""One topic under recorded load: a sender with keys, a subscription of each type, and an audit at the end."""

from __future__ import annotations

import time

import pulsar

from tests.support.processes.cluster import ClusterProcesses
from tests.support.traffic.delivery_audit import by_stream, judge
from tests.support.traffic.stock_traffic import EARLIEST, Sender, Subscription

TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "failover": pulsar.ConsumerType.Failover,
    "shared": pulsar.ConsumerType.Shared,
    "key_shared": pulsar.ConsumerType.KeyShared,
}
KEYS = [f"key-{number}" for number in range(10)]


class AuditedTopic:
    """One topic with keys, one sender, a subscription of each type; and an audit that reads all at the end."""

    def __init__(self, client: pulsar.Client, topic: str, types: dict[str, pulsar.ConsumerType] | None = None) -> None:
        self._client = client
        self.subscriptions = [
            Subscription(topic, name, kind, 1 if name == "exclusive" else 2) for name, kind in (types or TYPES).items()
        ]
        for subscription in self.subscriptions:
            subscription.open(client)
        client.subscribe(topic, "audit", initial_position=EARLIEST).close()
        self.audit = Subscription(topic, "audit", pulsar.ConsumerType.Exclusive, 1)
        self.sender = Sender(lambda: client, topic, KEYS)
        self.sender.start()
        self._last = 0, time.monotonic()  # how many were confirmed at the last look, and since when

    def go_on(self, cluster: ClusterProcesses, count: int = 300) -> None:
        """Until so many more are confirmed."""
        wanted = len(self.sender.acknowledged) + count
        cluster.until(lambda: len(self.sender.acknowledged) >= wanted, "no receipts")

    def is_at_rest(self) -> bool:
        """Has nothing been confirmed since the last look, for a second?"""
        now = time.monotonic()
        if len(self.sender.acknowledged) != self._last[0]:
            self._last = len(self.sender.acknowledged), now
        return now - self._last[1] > 1.0

    def close(self, cluster: ClusterProcesses) -> None:
        """No error at the application, nothing lost, nothing out of order."""
        self.sender.stop()
        self.sender.join(30)
        assert not self.sender.is_alive()
        assert self.sender.failure is None
        assert self.sender.refused == 0
        confirmed = set(self.sender.acknowledged)
        self.audit.open(self._client)
        everything = [*self.subscriptions, self.audit]
        try:
            cluster.until(lambda: all(confirmed <= set(s.seen) for s in everything), "messages are missing")
        finally:
            for subscription in everything:
                subscription.close()
        for subscription in everything:
            verdict = judge(
                by_stream(confirmed),
                by_stream(subscription.seen),
                ordered=subscription.type != pulsar.ConsumerType.Shared,
            )
            assert verdict.holds, f"{subscription.name}: {verdict}"
