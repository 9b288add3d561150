"""`make demo`: keyed traffic with the stock client, a `kill -9` of the broker in the middle, an audit of what survived.

Starts its own broker on free loopback ports with a temporary data directory and removes both. Exit code 0 only if every
acknowledged message was read back and every key stayed in order.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pulsar

from tests.broker_process import BrokerProcess
from tests.delivery_audit import Numbered, Verdict, by_stream, decode, encode, judge

TOPIC = "persistent://public/default/orders"
AUDIT = "audit"
PARTITIONS = 4
KEYS = 200
MESSAGE_BYTES = 100
RUN_S_MAX = 60.0

TTY = sys.stdout.isatty()
MIB = 1 << 20


@dataclass
class Run:
    """What happened so far. Filled by client threads (appends only), read by the main thread."""

    acknowledged: list[Numbered] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    read_live: list[Numbered] = field(default_factory=list)
    acknowledged_at: list[float] = field(default_factory=list)
    killed_at: float = 0.0
    publish_s: float = 0.0
    published: threading.Event = field(default_factory=threading.Event)

    def on_receipt(self, message: Numbered, result: pulsar.Result) -> None:
        if result != pulsar.Result.Ok:
            self.refused.append(str(result))
            return
        self.acknowledged.append(message)
        self.acknowledged_at.append(time.monotonic())

    def downtime_s(self) -> float:
        """The longest time without an acknowledgement, of those that end after the kill."""
        pairs = itertools.pairwise(self.acknowledged_at)
        return max((later - earlier for earlier, later in pairs if later > self.killed_at), default=0.0)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--messages", type=int, default=100_000)
    options.add_argument("--keep", action="store_true", help="keep the data directory and the broker's log")
    arguments = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="anabranch-demo-"))
    broker = BrokerProcess(folder / "data")
    try:
        return demo(broker, arguments.messages, folder)
    finally:
        broker.close()
        if arguments.keep:
            say(f"kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def demo(broker: BrokerProcess, messages: int, folder: Path) -> int:
    say(bold("Anabranch demo") + f": a durable broker, the stock pulsar-client {version('pulsar-client')}, one kill -9")
    began = time.monotonic()
    broker.start()
    client = stock_client(broker, folder)
    first = client.create_producer("persistent://public/default/hello")
    first.send(b"hello")
    ready_s = time.monotonic() - began
    row("start → first acknowledged message", f"{ready_s:.2f} s, {broker.rss_bytes() / MIB:.0f} MB resident")
    first.close()
    create_partitions(broker)
    client.subscribe(
        TOPIC, AUDIT, initial_position=pulsar.InitialPosition.Earliest
    ).close()  # holds all back for the audit

    run = Run()
    stop = threading.Event()
    live = threading.Thread(target=consume_live, args=(stock_client(broker, folder), run, stop), daemon=True)
    publisher = threading.Thread(target=publish, args=(client, run, messages), daemon=True)
    live.start()
    publisher.start()
    deadline = began + RUN_S_MAX

    def wait(done: float, label: str) -> None:
        """Show progress until `done` acknowledgements, the end of publishing, or the deadline."""
        while len(run.acknowledged) < done and not run.published.is_set() and time.monotonic() < deadline:
            progress(f"{label}: {len(run.acknowledged):,} of {messages:,} acknowledged")
            run.published.wait(0.05)

    wait(messages * 0.4, "publishing")
    before_kill = len(run.acknowledged)
    run.killed_at = time.monotonic()
    broker.kill9()
    progress("kill -9 …")
    broker.start()
    row("kill -9 of the broker", f"at {before_kill:,} acknowledged; listening again {broker.started_in_s:.2f} s later")
    wait(messages, "publishing")
    publisher.join(max(0.0, deadline - time.monotonic()))
    acknowledged = by_stream(run.acknowledged)

    wanted = set(run.acknowledged)
    while not wanted <= set(run.read_live) and time.monotonic() < deadline:
        progress(f"consuming: {len(run.read_live):,} read")
        stop.wait(0.1)
    stop.set()
    live.join(5.0)
    again, again_s = read_back(stock_client(broker, folder), len(wanted), deadline)
    broker.stop()
    progress("")
    return report(
        run, messages, judge(acknowledged, by_stream(run.read_live)), judge(acknowledged, by_stream(again)), again_s
    )


def publish(client: pulsar.Client, run: Run, messages: int) -> None:
    producer = client.create_producer(
        TOPIC, batching_enabled=True, batching_max_publish_delay_ms=2, block_if_queue_full=True, send_timeout_millis=0
    )
    began = time.monotonic()
    for n in range(messages):
        key, number = f"customer-{n % KEYS}", n // KEYS
        message = (key, number)
        producer.send_async(
            encode(key, number, MESSAGE_BYTES),
            lambda result, _id, message=message: run.on_receipt(message, result),
            partition_key=key,
        )
    producer.flush()
    run.publish_s = time.monotonic() - began
    run.published.set()


def consume_live(client: pulsar.Client, run: Run, stop: threading.Event) -> None:
    """A consumer that runs across the kill, as an application would."""
    consumer = client.subscribe(
        TOPIC, "live", pulsar.ConsumerType.Failover, initial_position=pulsar.InitialPosition.Earliest
    )
    while not stop.is_set():
        try:
            message = consumer.receive(timeout_millis=200)
        except pulsar.Timeout:
            continue
        run.read_live.append(decode(message.data()))
        consumer.acknowledge(message)
    client.close()


def read_back(client: pulsar.Client, expected: int, deadline: float) -> tuple[list[Numbered], float]:
    """Everything the topic holds, from its beginning: what the disk has."""
    consumer = client.subscribe(TOPIC, AUDIT, initial_position=pulsar.InitialPosition.Earliest)
    seen: list[Numbered] = []
    distinct: set[Numbered] = set()
    began = time.monotonic()
    while time.monotonic() < deadline:
        try:
            message = consumer.receive(timeout_millis=1000 if len(distinct) < expected else 100)
        except pulsar.Timeout:
            if len(distinct) >= expected:
                break
            continue
        seen.append(decode(message.data()))
        distinct.add(seen[-1])
        if len(seen) % 5000 == 0:
            progress(f"reading back: {len(seen):,}")
    spent = time.monotonic() - began
    client.close()
    return seen, spent


def report(run: Run, messages: int, live: Verdict, disk: Verdict, disk_s: float) -> int:
    row("acknowledged", f"{disk.acknowledged:,} of {messages:,} sent, {KEYS} keys, {PARTITIONS} partitions")
    row("read back", f"{live.read:,} live across the kill, {disk.read:,} from the beginning")
    row("lost", verdict(len(live.lost) + len(disk.lost)))
    row("out of order", verdict(len(live.out_of_order) + len(disk.out_of_order)))
    row(
        "seen again",
        f"{live.repeated:,} live, {disk.repeated:,} stored twice (sent again after the kill; deduplication is off)",
    )
    row(
        "throughput",
        f"{messages / run.publish_s if run.publish_s else 0:,.0f} msg/s published, kill included; "
        f"{(disk.read + disk.repeated) / disk_s if disk_s else 0:,.0f} msg/s read back",
    )
    row("downtime", f"{run.downtime_s():.2f} s without an acknowledgement around the kill")
    complete = run.published.is_set() and disk.acknowledged == messages and not run.refused
    if not complete:
        row("incomplete", red(f"{len(run.refused)} sends refused, {messages - disk.acknowledged:,} never acknowledged"))
    for name, judged in (("live", live), ("disk", disk)):
        if not judged.holds:
            row(name, red(str(judged)))
    held = complete and live.holds and disk.holds
    say(green("All held.") if held else red("NOT all held."))
    return 0 if held else 1


def create_partitions(broker: BrokerProcess) -> None:
    url = f"{broker.http_url}/admin/v2/persistent/public/default/orders/partitions"
    body = json.dumps(PARTITIONS).encode()
    request = urllib.request.Request(url, data=body, method="PUT", headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10):
        pass


def stock_client(broker: BrokerProcess, folder: Path) -> pulsar.Client:
    return pulsar.Client(
        broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(folder / "client.log"))
    )


def say(text: str) -> None:
    progress("")
    print(text, flush=True)


def row(label: str, text: str) -> None:
    say(f"  {label:<36}{text}")


def progress(text: str) -> None:
    """One line that is overwritten; nothing at all when nobody watches."""
    if TTY:
        print(f"\r\033[K  {text}" if text else "\r\033[K", end="", flush=True)


def verdict(count: int) -> str:
    return green("0") if count == 0 else red(f"{count:,}")


def _colour(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if TTY else text


def bold(text: str) -> str:
    return _colour("1", text)


def green(text: str) -> str:
    return _colour("32", text)


def red(text: str) -> str:
    return _colour("31;1", text)


if __name__ == "__main__":
    sys.exit(main())
