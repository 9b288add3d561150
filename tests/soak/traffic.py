"""Traffic of all soaks, and what must hold afterwards.

    topic   producer                                     subscriptions (consumers)
    plain   one, batched                                 exclusive (1), shared (2), audit
    keyed   one, key-batched, 2 partitions               exclusive (1), failover (2), shared (2), key_shared (2), audit
    once    one, named, own sequence ids, deduplicated;  exclusive (1), audit
            on restart it sends its last
            messages again
    batch   one, key-batched, deduplicated               key_shared (2), audit

Every consumer acknowledges only what it has recorded. `audit` is created first and read last: it shows what is stored.
No acknowledged message may be missing anywhere, none may be out of order per producer or key (except for Shared), and
`once` and `batch` must hold nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pulsar

from tests.support.traffic.delivery_audit import Numbered, Verdict, by_stream, judge
from tests.support.traffic.stock_traffic import EARLIEST, OnceSender, Sender, Subscription

NAMESPACE = "public/default"
NAMESPACE_ONCE = "public/once"  # deduplicated
NAMESPACE_PARTS = "public/parts"  # topics have two partitions
PLAIN, KEYED = f"persistent://{NAMESPACE}/plain", f"persistent://{NAMESPACE_PARTS}/keyed"
ONCE, BATCH = f"persistent://{NAMESPACE_ONCE}/once", f"persistent://{NAMESPACE_ONCE}/batch"
TOPICS = (PLAIN, KEYED, ONCE, BATCH)
KEYS = 50
QUIET_S_MAX = 40.0  # no progress for this long is a failure
WAIT_S_MAX = 120.0  # for any single step
ACKS_S = 2.5  # after this time no crash loses an acknowledgement

Admin = Callable[[str, str, object], object]
"""(method, path below /admin/v2/, body)"""


def prepare(admin: Admin) -> None:
    """The namespace with deduplication and the one with partitions."""
    admin("PUT", f"namespaces/{NAMESPACE_ONCE}", {})
    admin("POST", f"namespaces/{NAMESPACE_ONCE}/deduplication", True)
    admin("PUT", f"namespaces/{NAMESPACE_PARTS}", {})
    creation = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    admin("POST", f"namespaces/{NAMESPACE_PARTS}/autoTopicCreation", creation)


def faults(verdicts: dict[str, Verdict]) -> list[str]:
    found = [f"{name}: {verdict}" for name, verdict in verdicts.items() if not verdict.holds]
    return found + [
        f"{name}: {verdicts[name].repeated} duplicates of a deduplicated producer"
        for name in ("once/audit", "batch/audit")
        if verdicts[name].repeated
    ]


class Traffic:
    def __init__(
        self, connect: Callable[[], pulsar.Client], log_tail: Callable[[], str], tell: Callable[[str], None]
    ) -> None:
        """`connect` creates a client; `log_tail` returns the brokers' log for a failure report."""
        self._connect = connect
        self._log_tail = log_tail
        self._tell = tell
        self._clients: list[pulsar.Client] = []
        kind = pulsar.ConsumerType
        self._subscriptions = [
            Subscription(PLAIN, "exclusive", kind.Exclusive, 1),
            Subscription(PLAIN, "shared", kind.Shared, 2),
            Subscription(KEYED, "exclusive", kind.Exclusive, 1),
            Subscription(KEYED, "failover", kind.Failover, 2),
            Subscription(KEYED, "shared", kind.Shared, 2),
            Subscription(KEYED, "key_shared", kind.KeyShared, 2),
            Subscription(ONCE, "exclusive", kind.Exclusive, 1),
            Subscription(BATCH, "key_shared", kind.KeyShared, 2),
        ]
        self._audits = [Subscription(topic, "audit", kind.Exclusive, 1) for topic in TOPICS]
        self._senders: list[Sender] = []
        self._once: OnceSender | None = None

    def start(self) -> None:
        holder = self._client()
        for audit in self._audits:  # holds everything back from retention; read at the very end
            holder.subscribe(audit.topic, audit.name, initial_position=EARLIEST).close()
        for subscription in self._subscriptions:
            subscription.open(self._client())
        self._once = OnceSender(self._client, ONCE, "once-0")
        keys = [f"key-{number}" for number in range(KEYS)]
        self._senders = [Sender(self._client, PLAIN, ["plain-0"]), Sender(self._client, KEYED, keys), self._once]
        self._senders.append(Sender(self._client, BATCH, [f"batch-{number}" for number in range(KEYS)]))
        for sender in self._senders:
            sender.start()

    @property
    def confirmed(self) -> int:
        """Number of messages sent so far, by all senders."""
        return sum(len(sender.acknowledged) for sender in self._senders)

    @property
    def refused(self) -> int:
        return sum(sender.refused for sender in self._senders)

    def start_over(self) -> None:
        """The deduplicated producer closes, reconnects, and sends its last messages again."""
        assert self._once is not None
        self._once.start_over()

    def go_on(self, draw: Callable[[], int]) -> None:
        """Wait until every sender has this many more receipts."""
        targets = [len(sender.acknowledged) + draw() for sender in self._senders]
        self._until(lambda: self._reached(targets), lambda: self.confirmed, "producers make no progress")

    def finish(self) -> dict[str, Verdict]:
        """Stop sending, wait until all consumers have everything; returns the faults found."""
        for sender in self._senders:
            sender.stop()
        for sender in self._senders:
            sender.join(QUIET_S_MAX)
            assert sender.failure is None, sender.failure
            assert not sender.is_alive(), f"{sender.name} could not finish\n{self._log_tail()}"
        for audit in self._audits:
            audit.open(self._client())
        confirmed = {sender.topic: set(sender.acknowledged) for sender in self._senders}
        everything = self._subscriptions + self._audits
        self._drain(everything, confirmed)
        for client in self._clients:
            client.close()
        return {
            f"{subscription.topic.rpartition('/')[2]}/{subscription.name}": judge(
                by_stream(confirmed[subscription.topic]),
                by_stream(subscription.seen),
                ordered=subscription.type != pulsar.ConsumerType.Shared,
            )
            for subscription in everything
        }

    def comes_again(self) -> list[str]:
        """Messages redelivered although all were acknowledged: none, if that is long enough ago."""
        client, found = self._connect(), []
        subscriptions = self._subscriptions + self._audits
        consumers = [
            client.subscribe(one.topic, one.name, one.type, initial_position=EARLIEST) for one in subscriptions
        ]
        patience_ms = 1000  # for the first; the others have waited as long
        for one, consumer in zip(subscriptions, consumers, strict=True):
            try:
                message = consumer.receive(timeout_millis=patience_ms)
                found.append(f"{one.topic}/{one.name}: {message.data()!r} at {message.message_id()} came again")
            except pulsar.Timeout:
                patience_ms = 20
        client.close()
        return found

    def _client(self) -> pulsar.Client:
        self._clients.append(self._connect())
        return self._clients[-1]

    def _reached(self, targets: list[int]) -> bool:
        for sender in self._senders:
            if sender.failure is not None:
                raise sender.failure
        return all(len(sender.acknowledged) >= least for sender, least in zip(self._senders, targets, strict=True))

    def _drain(self, subscriptions: list[Subscription], confirmed: dict[str, set[Numbered]]) -> None:
        try:
            self._until(
                lambda: all(confirmed[s.topic] <= set(s.seen) for s in subscriptions),
                lambda: sum(len(s.seen) for s in subscriptions),
                "consumers make no progress",
            )
        except AssertionError as error:
            self._tell(str(error))  # the checks report which consumer misses what
        for subscription in subscriptions:
            subscription.close()

    def _until(self, done: Callable[[], bool], progress: Callable[[], int], complaint: str) -> None:
        last, since = progress(), time.monotonic()
        deadline = since + WAIT_S_MAX
        while not done():
            time.sleep(0.05)
            now = progress()
            if now != last:
                last, since = now, time.monotonic()
            assert time.monotonic() < deadline, f"not done within {WAIT_S_MAX} s\n{self._log_tail()}"
            assert time.monotonic() - since < QUIET_S_MAX, f"{complaint} for {QUIET_S_MAX} s\n{self._log_tail()}"
