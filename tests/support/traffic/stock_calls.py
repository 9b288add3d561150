"""Common calls of stock-client tests: send, receive, expect silence, call REST. Every wait has a deadline."""

from __future__ import annotations

import json
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pulsar

from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses

EARLIEST = pulsar.InitialPosition.Earliest
LATEST = pulsar.InitialPosition.Latest
EXCLUSIVE = pulsar.ConsumerType.Exclusive
SHARED = pulsar.ConsumerType.Shared
FAILOVER = pulsar.ConsumerType.Failover
KEY_SHARED = pulsar.ConsumerType.KeyShared

RECEIVE_MS = 10_000  # more than any message may take on a busy machine
REDIRECTS_MAX = 5
QUIET_MS = 300  # how long silence must last to count as silence


def payloads(count: int, prefix: str = "m") -> list[bytes]:
    """Distinct payloads whose order can be read from the text."""
    return [f"{prefix}-{index:05d}".encode() for index in range(count)]


def send_all(producer: Any, values: Iterable[bytes], **options: Any) -> list[Any]:
    """Blocking sends, one after the other; returns the message ids."""
    return [producer.send(value, **options) for value in values]


def send_pipelined(producer: Any, values: Sequence[bytes], *, within_s: float = 20.0, **options: Any) -> list[Any]:
    """Pipelined sends; returns the message ids in send order once every receipt has come, and fails on any error."""
    outcomes: dict[int, tuple[Any, Any]] = {}
    all_done = threading.Event()

    def receipt(index: int) -> Callable[[Any, Any], None]:
        def done(result: Any, message_id: Any) -> None:
            outcomes[index] = (result, message_id)
            if len(outcomes) == len(values):
                all_done.set()

        return done

    for index, value in enumerate(values):
        producer.send_async(value, receipt(index), **options)
    producer.flush()
    assert all_done.wait(within_s), f"{len(outcomes)} of {len(values)} receipts within {within_s} s"
    failed = [result for result, _ in outcomes.values() if result != pulsar.Result.Ok]
    assert failed == []
    return [outcomes[index][1] for index in range(len(values))]


def publish_batch(client: Any, topic: str, values: Sequence[bytes], **options: Any) -> list[Any]:
    """Send the values as exactly one batch entry; returns their message ids, which share one entry."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=len(values), batching_max_publish_delay_ms=5_000, **options
    )
    ids = send_pipelined(producer, values)
    producer.close()
    assert len({(each.ledger_id(), each.entry_id()) for each in ids}) == 1, "the client split the batch"
    return ids


def keep_all(client: Any, topic: str) -> None:
    """A durable subscription that holds on to everything; without one, closed ledgers may go (retention is 0)."""
    client.subscribe(topic, "keeper", initial_position=EARLIEST).close()


def receive_all(consumer: Any, count: int, *, ack: bool = True, within_s: float = 20.0) -> list[Any]:
    """The next `count` messages in delivery order; fails with what came when the deadline passes."""
    deadline = time.monotonic() + within_s
    messages: list[Any] = []
    while len(messages) < count:
        left_ms = int((deadline - time.monotonic()) * 1000)
        try:
            message = consumer.receive(max(left_ms, 1))
        except pulsar.Timeout:
            raise AssertionError(f"{len(messages)} of {count} messages within {within_s} s: {data(messages)}") from None
        messages.append(message)
        if ack:
            consumer.acknowledge(message)
    return messages


def receive_data(consumer: Any, count: int, **options: Any) -> list[bytes]:
    """Like receive_all, payloads only."""
    return data(receive_all(consumer, count, **options))


def receive_rest(consumer: Any, *, ack: bool = True, quiet_ms: int = QUIET_MS, limit: int = 10_000) -> list[Any]:
    """Everything that comes until the consumer has been quiet for a while."""
    messages: list[Any] = []
    while len(messages) < limit:
        try:
            message = consumer.receive(quiet_ms)
        except pulsar.Timeout:
            break
        messages.append(message)
        if ack:
            consumer.acknowledge(message)
    return messages


def collect(consumers: Sequence[Any], total: int, *, ack: bool = True, within_s: float = 20.0) -> list[list[Any]]:
    """What each of several consumers gets until together they have `total`; they take turns, and nothing may follow."""
    deadline = time.monotonic() + within_s
    found: list[list[Any]] = [[] for _ in consumers]
    while sum(map(len, found)) < total:
        for consumer, mine in zip(consumers, found, strict=True):
            mine += receive_rest(consumer, ack=ack, quiet_ms=20, limit=min(10, total - sum(map(len, found))))
        assert time.monotonic() < deadline, f"{[len(mine) for mine in found]} of {total} within {within_s} s"
    for consumer in consumers:
        expect_silence(consumer, quiet_ms=50)
    return found


def read_all(reader: Any, count: int, *, within_s: float = 20.0) -> list[Any]:
    """The next `count` messages of a reader."""
    deadline = time.monotonic() + within_s
    messages: list[Any] = []
    while len(messages) < count:
        left_ms = int((deadline - time.monotonic()) * 1000)
        try:
            messages.append(reader.read_next(max(left_ms, 1)))
        except pulsar.Timeout:
            raise AssertionError(f"{len(messages)} of {count} messages within {within_s} s: {data(messages)}") from None
    return messages


def read_available(reader: Any, *, limit: int = 10_000) -> list[bytes]:
    """What has_message_available promises, payload by payload."""
    found: list[bytes] = []
    while len(found) < limit and reader.has_message_available():
        found.append(reader.read_next(RECEIVE_MS).data())
    return found


def expect_silence(consumer: Any, *, quiet_ms: int = QUIET_MS) -> None:
    """No message for `quiet_ms`."""
    try:
        message = consumer.receive(quiet_ms)
    except pulsar.Timeout:
        return
    raise AssertionError(f"unexpected message {message.data()[:80]!r} with id {message.message_id()}")


def data(messages: Iterable[Any]) -> list[bytes]:
    return [message.data() for message in messages]


def position(message_id: Any) -> tuple[int, int, int]:
    """Comparable place of a message id in one topic."""
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def by_key(messages: Iterable[Any]) -> dict[str, list[bytes]]:
    """Payloads per key, in delivery order."""
    found: dict[str, list[bytes]] = {}
    for message in messages:
        found.setdefault(message.partition_key(), []).append(message.data())
    return found


def eventually(check: Callable[[], bool], *, within_s: float = 10.0, what: str = "condition") -> None:
    """Ask again until it holds; a poll of the outside world, bounded by the deadline."""
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"{what} did not hold within {within_s} s"
        time.sleep(0.02)


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """A deadline for a blocking call of the wheel that takes none; a late call is left to the end of its client."""
    outcome: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

    def run() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise AssertionError(f"no answer within {seconds} s") from None
    if error is not None:
        raise error
    return value


class Rest:
    """Plain HTTP against the broker's admin port."""

    def __init__(self, http_url: str, token: str | None = None) -> None:
        self._http_url = http_url
        self._token = token

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and decoded JSON (None without a body)."""
        encoded = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        url = self._http_url + path
        for _ in range(REDIRECTS_MAX):
            request = urllib.request.Request(url, data=encoded, method=method, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=10) as response:
                    status, content = response.status, response.read()
            except urllib.error.HTTPError as error:
                status, content = error.code, error.read()
                if status == 307:  # urllib follows redirects of GET and HEAD only
                    url = error.headers["Location"]
                    continue
            return status, json.loads(content) if content else None
        raise AssertionError(f"{method} {path} is sent from broker to broker")

    def expect(self, method: str, path: str, body: Any = None) -> Any:
        """Like call, but anything outside 2xx fails the test."""
        status, answer = self.call(method, path, body)
        assert 200 <= status < 300, f"{method} {path} answered {status}: {answer}"
        return answer

    def create_namespace(self, namespace: str) -> None:
        status, answer = self.call("PUT", f"/admin/v2/namespaces/{namespace}")
        assert status in (204, 409), f"creating {namespace} answered {status}: {answer}"

    def create_partitioned(self, topic: str, partitions: int) -> None:
        self.expect("PUT", f"{topic_path(topic)}/partitions", partitions)

    def grow_partitions(self, topic: str, partitions: int) -> None:
        self.expect("POST", f"{topic_path(topic)}/partitions", partitions)

    def stats(self, topic: str) -> Any:
        return self.expect("GET", f"{topic_path(topic)}/stats")


def rests_of(broker: BrokerProcess | ClusterProcesses) -> list[Rest]:
    """One for each broker."""
    brokers = broker.alive if isinstance(broker, ClusterProcesses) else [broker]
    return [Rest(one.http_url) for one in brokers]


def topic_path(topic: str) -> str:
    """Admin path of a full topic name."""
    domain, _, rest = topic.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return f"/admin/v2/{domain}/{tenant}/{namespace}/{urllib.parse.quote(local, safe='')}"
