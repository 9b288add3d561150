"""The broker's share of all CPU while the stock client produces and consumes 100-byte messages.

Expected before measuring: the client needs 5-6 µs per message to send and as much to receive and acknowledge; with
batches the broker needs about 1 µs: 0.1. Without batches (shown beside it) the broker works per message too, about 12
µs: 0.4.

    python -m benchmarks.broker.stock_client produce|consume URL TOPIC COUNT batched|single

`run` starts each role in a separate process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from types import TracebackType

import pulsar

from benchmarks.support.floors import ROOT
from benchmarks.support.measure import Outcome, Scene, Series, at_most, process_cpu_seconds
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_client import new_client


def produce(url: str, topic: str, count: int, batched: bool) -> None:
    client = new_client(url)
    producer = client.create_producer(topic, batching_enabled=batched, block_if_queue_full=True)
    payload = b"x" * 100
    _ready()
    for _ in range(count):
        producer.send_async(payload, None)
    producer.flush()
    _done()
    client.close()


def consume(url: str, topic: str, count: int) -> None:
    client = new_client(url)
    consumer = client.subscribe(topic, "bench", initial_position=pulsar.InitialPosition.Earliest)
    _ready()
    for _ in range(count):
        consumer.acknowledge(consumer.receive())
    _done()
    client.close()


def _ready() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _done() -> None:
    """Stay alive until the parent has read the CPU time of this process."""
    print("done", flush=True)
    sys.stdin.readline()


class Worker:
    """One client process, step by step."""

    def __init__(self, role: str, url: str, topic: str, count: int, batched: bool) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.broker.stock_client",
            role,
            url,
            topic,
            str(count),
            "batched" if batched else "single",
        ]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def wait(self, word: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == word:
                return
        raise RuntimeError(f"a client process ended before it was {word}")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def share(broker: BrokerProcess, topic: str, count: int, batched: bool) -> tuple[float, float, float]:
    """CPU seconds of the broker, of everything, and messages per second."""
    arguments = (broker.service_url, topic, count, batched)
    with Worker("consume", *arguments) as consumer, Worker("produce", *arguments) as producer:
        clients = (consumer, producer)
        for client in clients:
            client.wait("ready")
        before = [process_cpu_seconds(pid) for pid in (broker.pid, consumer.pid, producer.pid)]
        start = time.perf_counter()
        for client in clients:
            client.go()
        producer.wait("done")
        consumer.wait("done")
        seconds = time.perf_counter() - start
        after = [process_cpu_seconds(pid) for pid in (broker.pid, consumer.pid, producer.pid)]
    used = [end - begin for begin, end in zip(before, after, strict=True)]
    return used[0], sum(used), count / seconds


def run(scene: Scene) -> list[Outcome]:
    outcomes = []
    with BrokerProcess(scene.place("stock") / "data") as broker:
        for name, title, batched, count, rounds in (
            (
                "stock-cpu",
                "broker CPU / all CPU, stock client, 100 B",
                True,
                scene.size(800_000, 50_000),
                scene.size(3, 1),
            ),
            ("stock-cpu-single", "the same without batches", False, scene.size(150_000, 2_000), scene.size(3, 1)),
        ):
            found = [share(broker, f"{name}-{number}", count, batched) for number in range(rounds)]
            brokers, everything, rates = zip(*found, strict=True)
            outcomes.append(
                Outcome(
                    name,
                    title,
                    Series("broker", "CPU s", brokers),
                    Series("all CPU", "CPU s", everything),
                    at_most(0.25) if batched else None,
                    {
                        "messages": count,
                        "messages_per_s": rates,
                        "broker_us_per_message": [used / count * 1e6 for used in brokers],
                    },
                )
            )
    return outcomes


if __name__ == "__main__":
    role, url, topic, count, form = sys.argv[1:]
    if role == "produce":
        produce(url, topic, int(count), form == "batched")
    else:
        consume(url, topic, int(count))
