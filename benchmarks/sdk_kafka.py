"""The SDK on our broker beside `confluent-kafka` on Kafka: `python -m benchmarks.sdk_kafka`. Reported, without goals.

Needs `pip install -c constraints.txt -e '.[bench]'` and Java; Kafka itself (44 MB) is fetched once, by Maven. What the
clients do is said in `sdk_clients` and `kafka_clients`. Expected: single calls are a matter of the interpreter, and the
other library's are C functions, so it is two or three times faster there; bulk calls are level or ahead. Two things are
not alike: our broker syncs before it confirms and Kafka leaves that to the kernel, and Kafka has a heap of 1 GB.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from functools import partial

from anabranch.protocol.codec.core import NATIVE
from benchmarks.sdk.clients import BULK_ROWS
from benchmarks.sdk_throughput import Side, Taken, worked
from benchmarks.support import report
from benchmarks.support.measure import Outcome, Run, Scene, Series, process_cpu_seconds, side_by_side
from tests.services import kafka
from tests.services.process import Cluster
from tests.support.processes.broker_process import BrokerProcess

MESSAGES, MANY = 300_000, 2_000_000
PEER = "confluent-kafka"


@dataclass
class KafkaSide:
    """Measures one role of `kafka_clients` repeatedly, each time on a new topic."""

    server: Cluster
    role: str
    count: int
    cpu_us: list[float] = field(default_factory=list)
    server_cpu_us: list[float] = field(default_factory=list)

    def warm_up(self) -> None:
        """Warm up the JVM of the server: its compilation is not part of the comparison."""
        self._worked(self.role, "warm-up")

    def _worked(self, role: str, topic: str) -> Taken:
        module, address = "benchmarks.sdk.kafka_clients", self.server.hosts
        if "consume" in role:
            worked(address, "publish", topic, self.count, module=module)
        used = partial(process_cpu_seconds, self.server.nodes[0].pid)
        return worked(address, role, topic, self.count, server_cpu_s=used, module=module)

    def __call__(self) -> float:
        """Messages per second."""
        taken = self._worked(self.role, f"{self.role}-{len(self.cpu_us)}")
        self.cpu_us.append(taken.cpu_s / self.count * 1e6)
        self.server_cpu_us.append(taken.server_cpu_s / self.count * 1e6)
        return self.count / taken.seconds


@dataclass(frozen=True, slots=True)
class Pair:
    title: str
    role: str
    kafka: str
    count: int


def measured(name: str, one: Pair, scene: Scene) -> list[Outcome]:
    if importlib.util.find_spec("confluent_kafka") is None:
        raise SystemExit("confluent-kafka is not installed: pip install -c constraints.txt -e '.[bench]'")
    place = scene.place(name)
    with BrokerProcess(place / "data") as broker, kafka.cluster(place / "kafka") as server:
        ours = Side(broker, one.role, scene.size(one.count, BULK_ROWS))
        theirs = KafkaSide(server, one.kafka, scene.size(MESSAGES, BULK_ROWS))
        theirs.warm_up()
        rates, floors = side_by_side(scene.size(3, 1), ours, theirs)
    notes = {
        "messages": (ours.count, theirs.count),
        "codec": "python" if NATIVE is None else "native",
        "kafka": kafka.version(),
        "cpu_us_per_message": ours.cpu_us,
        "kafka_cpu_us_per_message": theirs.cpu_us,
        "broker_cpu_us_per_message": ours.broker_cpu_us,
        "kafka_server_cpu_us_per_message": theirs.server_cpu_us,
    }
    cpu = Series("SDK", "µs/msg", tuple(ours.cpu_us)), Series(PEER, "µs/msg", tuple(theirs.cpu_us))
    return [
        Outcome(name, one.title, Series("SDK", "msg/s", rates), Series(PEER, "msg/s", floors), None, notes),
        Outcome(f"{name}-cpu", "  CPU of the client", *cpu, None),
    ]


PAIRS = {
    "publish": Pair("publish 100 B keyed", "publish", "publish", MESSAGES),
    "publish-results": Pair("the same, a result for every message", "publish-results", "publish-results", MESSAGES),
    "consume": Pair("receive 100 B one by one", "consume", "consume", MESSAGES),
    "bulk-publish": Pair("send_batch of lists", "bulk-publish", "publish", MANY),
    "bulk-publish-arrow": Pair("send_batch of Arrow", "bulk-publish-arrow", "publish", MANY),
    "bulk-consume": Pair("receive_batch to lists", "bulk-consume", "bulk-consume", MANY),
    "bulk-consume-arrow": Pair("receive_batch to Arrow", "bulk-consume-arrow", "bulk-consume", MANY),
}
MEASURES: dict[str, Run] = {name: partial(measured, name, one) for name, one in PAIRS.items()}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.sdk_kafka", MEASURES, arguments=arguments, mark="-sdk-kafka")


if __name__ == "__main__":
    raise SystemExit(main())
