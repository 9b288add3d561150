"""`make soak`, part one: producers and consumers of every kind while the broker is killed with -9, again and again.

    topic   producer                                     subscriptions (consumers)
    plain   one, batched                                 exclusive (1), shared (2), audit
    keyed   one, key-batched, 2 partitions               exclusive (1), failover (2), shared (2), key_shared (2), audit
    once    one, named, own sequence ids, deduplicated;  exclusive (1), audit
            after each kill it starts over and sends
            its last messages again
    batch   one, key-batched, deduplicated               key_shared (2), audit

Every consumer acknowledges only what it has written down. `audit` is created first and read last: what the disk holds.
After the last kill: no acknowledged message is missing anywhere, none is out of order per producer or key (Shared
promises none), and `once` and `batch` hold nothing twice. The seed is printed; it repeats the plan, not the timing.
"""

from __future__ import annotations

import argparse
import functools
import random
import secrets
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pulsar

from tests.broker_process import BrokerProcess
from tests.delivery_audit import Numbered, Verdict, by_stream, decode, encode, judge

NAMESPACE = "public/default"
NAMESPACE_ONCE = "public/once"  # deduplicated
PLAIN, KEYED = f"persistent://{NAMESPACE}/plain", f"persistent://{NAMESPACE}/keyed"
ONCE, BATCH = f"persistent://{NAMESPACE_ONCE}/once", f"persistent://{NAMESPACE_ONCE}/batch"
KEYS = 50
IN_FLIGHT_MAX = 400
RESENT = 50  # how many confirmed messages the deduplicated producer sends again after each kill
QUIET_S_MAX = 40.0  # no progress for this long is a failure
WAIT_S_MAX = 120.0  # for any single step
EARLIEST = pulsar.InitialPosition.Earliest


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    kills: int
    kills_while_starting: int
    seconds: float
    start_s_max: float
    rss_bytes: int
    complaints: list[str]
    verdicts: dict[str, Verdict]

    @property
    def faults(self) -> list[str]:
        found = [f"{name}: {verdict}" for name, verdict in self.verdicts.items() if not verdict.holds]
        found += [
            f"{name}: {self.verdicts[name].repeated} duplicates of a deduplicated producer"
            for name in ("once/audit", "batch/audit")
            if self.verdicts[name].repeated
        ]
        if self.complaints:
            found.append(f"the broker logged {len(self.complaints)} errors, first: {self.complaints[0]}")
        return found


class Sender(threading.Thread):
    """A producer that keeps a bounded window of messages on the wire and writes down what was confirmed."""

    def __init__(self, connect: Callable[[], pulsar.Client], topic: str, streams: list[str]) -> None:
        super().__init__(daemon=True, name=f"sender {topic}")
        self.topic = topic
        self.acknowledged: list[Numbered] = []
        self.refused = 0
        self.failure: Exception | None = None
        self._client = connect()
        self._streams = streams
        self._stopping = threading.Event()
        self._window = threading.Semaphore(IN_FLIGHT_MAX)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            self.produce()
        except Exception as error:
            self.failure = error  # raised by the main thread

    def produce(self) -> None:
        keyed = len(self._streams) > 1
        batching = pulsar.BatchingType.KeyBased if keyed else pulsar.BatchingType.Default
        producer = self._client.create_producer(
            self.topic,
            send_timeout_millis=0,
            batching_enabled=True,
            batching_type=batching,
            batching_max_publish_delay_ms=2,
        )
        n = 0
        while not self._stopping.is_set():
            stream, number = self._streams[n % len(self._streams)], n // len(self._streams)
            self._send(producer, stream, number, partition_key=stream if keyed else None)
            n += 1
            if n % 20 == 0:
                self._stopping.wait(0.008)  # about 2,000 messages/s: the kill is the load, not the rate
        producer.flush()

    def _send(self, producer: pulsar.Producer, stream: str, number: int, **options: object) -> None:
        self._window.acquire()
        receipt = functools.partial(self._receipt, (stream, number))
        producer.send_async(encode(stream, number, 64), receipt, **options)

    def _receipt(self, message: Numbered, result: pulsar.Result, _id: pulsar.MessageId) -> None:
        self._window.release()
        if result == pulsar.Result.Ok:
            self.acknowledged.append(message)
        else:
            self.refused += 1


class OnceSender(Sender):
    """A deduplicated producer: its numbers are its sequence ids; after each kill it starts over, a bit earlier."""

    def __init__(self, connect: Callable[[], pulsar.Client], topic: str, name: str) -> None:
        super().__init__(connect, topic, [name])
        self._producer_name = name
        self._again = threading.Event()

    def start_over(self) -> None:
        self._again.set()

    def produce(self) -> None:
        number = 0
        while not self._stopping.is_set():
            producer = self._producer()
            confirmed = self.acknowledged[-1][1] if self.acknowledged else -1
            assert producer.last_sequence_id() >= confirmed, "the broker forgot a confirmed sequence id"
            self._again.clear()
            number = max(0, min(number, confirmed + 1 - RESENT))
            while not self._stopping.is_set() and not self._again.is_set():
                self._send(producer, self._producer_name, number, sequence_id=number)
                number += 1
                if number % 20 == 0:
                    self._stopping.wait(0.012)
            if self._stopping.is_set():
                producer.flush()
            producer.close()

    def _producer(self) -> pulsar.Producer:
        while True:
            try:
                return self._client.create_producer(
                    self.topic, producer_name=self._producer_name, send_timeout_millis=0
                )
            except pulsar.PulsarException:
                if self._stopping.wait(0.1):
                    raise


class Taker(threading.Thread):
    """One consumer: writes down, then acknowledges."""

    def __init__(self, consumer: pulsar.Consumer, seen: list[Numbered]) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer
        self._seen = seen
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                message = self._consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            self._seen.append(decode(message.data()))
            self._consumer.acknowledge(message)


@dataclass
class Subscription:
    topic: str
    name: str
    type: pulsar.ConsumerType
    consumers: int
    seen: list[Numbered] = field(default_factory=list)
    takers: list[Taker] = field(default_factory=list)

    def open(self, client: pulsar.Client) -> None:
        for _ in range(self.consumers):
            consumer = client.subscribe(self.topic, self.name, self.type, initial_position=EARLIEST)
            self.takers.append(Taker(consumer, self.seen))
        for taker in self.takers:
            taker.start()


class Soak:
    """One run: traffic, kills, drain, verdicts."""

    def __init__(self, broker: BrokerProcess, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self._broker = broker
        self._folder = folder
        self._seed = seed
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

    def run(self, kills: int) -> Outcome:
        began = time.monotonic()
        self._broker.start()
        prepare(self._broker)
        audits = [
            Subscription(topic, "audit", pulsar.ConsumerType.Exclusive, 1) for topic in (PLAIN, KEYED, ONCE, BATCH)
        ]
        holder = self._connect()
        for audit in audits:  # hold everything back from retention; read at the very end
            holder.subscribe(audit.topic, audit.name, initial_position=EARLIEST).close()
        for subscription in self._subscriptions:
            subscription.open(self._connect())
        once = OnceSender(self._connect, ONCE, "once-0")
        keys = [f"key-{n}" for n in range(KEYS)]
        senders = [Sender(self._connect, PLAIN, ["plain-0"]), Sender(self._connect, KEYED, keys), once]
        senders.append(Sender(self._connect, BATCH, [f"batch-{n}" for n in range(KEYS)]))
        for sender in senders:
            sender.start()
        starting, start_s_max = self._kill(kills, senders, once)
        for sender in senders:
            sender.stop()
        for sender in senders:
            sender.join(QUIET_S_MAX)
            assert sender.failure is None, sender.failure
            assert not sender.is_alive(), f"{sender.name} could not finish\n{self._broker.log_tail()}"
        for audit in audits:
            audit.open(holder)
        confirmed = {sender.topic: set(sender.acknowledged) for sender in senders}
        everything = self._subscriptions + audits
        self._drain(everything, confirmed)
        rss = self._broker.rss_bytes()
        verdicts = {
            f"{subscription.topic.rpartition('/')[2]}/{subscription.name}": judge(
                by_stream(confirmed[subscription.topic]),
                by_stream(subscription.seen),
                ordered=subscription.type != pulsar.ConsumerType.Shared,
            )
            for subscription in everything
        }
        for client in self._clients:
            client.close()
        self._broker.stop()
        complaints = self._broker.log_complaints()
        return Outcome(self._seed, kills, starting, time.monotonic() - began, start_s_max, rss, complaints, verdicts)

    def _kill(self, kills: int, senders: list[Sender], once: OnceSender) -> tuple[int, float]:
        chance = random.Random(self._seed)
        starting, start_s_max = 0, 0.0
        for kill in range(1, kills + 1):
            floors = [len(sender.acknowledged) + chance.randrange(50, 1200) for sender in senders]
            self._until(
                functools.partial(reached, senders, floors),
                lambda: sum(len(s.acknowledged) for s in senders),
                "producers make no progress",
            )
            time.sleep(chance.uniform(0.0, 0.2))
            self._broker.kill9()
            if chance.random() < 0.25:
                self._broker.launch()
                time.sleep(chance.uniform(0.05, 0.8))
                self._broker.kill9()
                starting += 1
            self._broker.start()
            start_s_max = max(start_s_max, self._broker.started_in_s)
            if chance.random() < 0.2:
                time.sleep(chance.uniform(0.0, 0.5))
                self._broker.restart()  # a clean stop in full traffic loses nothing either
            once.start_over()
            confirmed = sum(len(s.acknowledged) for s in senders)
            self._tell(
                f"kill {kill}/{kills}: {confirmed:,} acknowledged, up again in {self._broker.started_in_s:.2f} s"
            )
        return starting, start_s_max

    def _drain(self, subscriptions: list[Subscription], confirmed: dict[str, set[Numbered]]) -> None:
        try:
            self._until(
                lambda: all(confirmed[s.topic] <= set(s.seen) for s in subscriptions),
                lambda: sum(len(s.seen) for s in subscriptions),
                "consumers make no progress",
            )
        except AssertionError as error:
            self._tell(str(error))  # the verdicts say who misses what
        for subscription in subscriptions:
            for taker in subscription.takers:
                taker.stop()
        for subscription in subscriptions:
            for taker in subscription.takers:
                taker.join(10.0)

    def _until(self, done: Callable[[], bool], progress: Callable[[], int], complaint: str) -> None:
        last, since = progress(), time.monotonic()
        deadline = since + WAIT_S_MAX
        while not done():
            time.sleep(0.05)
            now = progress()
            if now != last:
                last, since = now, time.monotonic()
            assert time.monotonic() < deadline, f"not done within {WAIT_S_MAX} s\n{self._broker.log_tail()}"
            assert time.monotonic() - since < QUIET_S_MAX, f"{complaint} for {QUIET_S_MAX} s\n{self._broker.log_tail()}"

    def _connect(self) -> pulsar.Client:
        log = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self._folder / "clients.log"))
        self._clients.append(pulsar.Client(self._broker.service_url, logger=log, operation_timeout_seconds=30))
        return self._clients[-1]


def reached(senders: list[Sender], floors: list[int]) -> bool:
    for sender in senders:
        if sender.failure is not None:
            raise sender.failure
    return all(len(sender.acknowledged) >= least for sender, least in zip(senders, floors, strict=True))


def prepare(broker: BrokerProcess) -> None:
    """The deduplicated namespace and the partitioned topic."""
    admin(broker, "PUT", f"namespaces/{NAMESPACE_ONCE}", b"{}")
    admin(broker, "POST", f"namespaces/{NAMESPACE_ONCE}/deduplication", b"true")
    admin(broker, "PUT", f"persistent/{NAMESPACE}/keyed/partitions", b"2")


def admin(broker: BrokerProcess, method: str, path: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{broker.http_url}/admin/v2/{path}", body, headers, method=method)
    with urllib.request.urlopen(request, timeout=10):
        pass


def soak(folder: Path, kills: int, seed: int, tell: Callable[[str], None]) -> Outcome:
    broker = BrokerProcess(folder / "data")
    try:
        return Soak(broker, folder, seed, tell).run(kills)
    finally:
        broker.close()


def main() -> int:
    options = argparse.ArgumentParser(description="Crash soak: traffic of every kind under kill -9.")
    options.add_argument("--kills", type=int, default=30)
    options.add_argument("--seed", type=int, default=None)
    arguments = options.parse_args()
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    print(f"crash soak: {arguments.kills} kills, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="anabranch-soak-"))
    outcome = soak(folder, arguments.kills, seed, functools.partial(print, flush=True))
    for name, verdict in outcome.verdicts.items():
        print(f"  {name:<18} {verdict}")
    print(
        f"  {outcome.kills} kills and {outcome.kills_while_starting} while starting in {outcome.seconds:.0f} s; "
        f"slowest start {outcome.start_s_max:.2f} s; {outcome.rss_bytes >> 20} MB resident at the end"
    )
    if outcome.faults:
        print(f"FAILED, seed {seed}, data and logs kept in {folder}:", *outcome.faults, sep="\n  ")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print("All held.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
