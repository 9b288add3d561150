"""Spark on Apache Pulsar: `make bench-spark-pulsar` or `python -m benchmarks.spark_pulsar [--rows N] [--rounds N]`.

The same work as `benchmarks.spark`, on a topic of four partitions of Apache Pulsar with `journalSyncData=true`, against
our own broker and against Spark's own Kafka source and sink on Kafka; and the fixed cost of a micro-batch against the
built-in rate source. All in one run on one machine; the sides take turns.

Expected before measuring: entries are decoded by the same code as those of our broker, so reading is bound by what
Pulsar's broker delivers over loopback (3 × the JVM's work per entry of ours in Python is about even): 0.6-1.2 of our
broker, and 1.5-3 × Kafka's source. Writing waits for the bookie's journal. A limited micro-batch asks REST twice and
opens a reader to sample: 10-20 ms more than on our broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from anabranch.spark.jobs.session import open_session
from benchmarks.spark import QUERIES, ROUNDS, ROWS, compared, sizes, trigger_times, warm
from benchmarks.spark_sessions.sessions import (
    PARTS,
    KafkaRows,
    OurRows,
    PulsarRows,
    Store,
    broker_of,
    kafka_side,
    our_side,
)
from benchmarks.support import report
from benchmarks.support.measure import Goal, Outcome, Run, Scene, Series, at_least, at_most
from tests.services import Unavailable, kafka, pulsar_broker, spark_kafka
from tests.services.pulsar_broker import PulsarNode

START_SECONDS = 180.0
SYNCED = {"journalSyncData": "true"}


@contextmanager
def pulsar_of(place: Path) -> Iterator[PulsarNode]:
    node = pulsar_broker.node(place, more=SYNCED)
    try:
        node.start(within_s=START_SECONDS)
        yield node
    finally:
        node.kill9()


def batch(scene: Scene, rows: int = ROWS, rounds: int = ROUNDS) -> list[Outcome]:
    """Reads and writes of Pulsar's topics against our broker and, if it is there, against Kafka."""
    count, rounds = scene.size(rows, 2_000), scene.size(rounds, 1)
    place = scene.place("pulsar")
    report.say(f"  {count} rows; Apache Pulsar, our broker, Kafka and their Spark sessions are starting")
    with ExitStack() as stack:
        node = stack.enter_context(pulsar_of(place / "node"))
        broker = broker_of(place, stack)
        side = stack.enter_context(our_side(place / "ours.log", codec="native"))
        pulsar, ours = PulsarRows(side, count, node), OurRows(side, count, broker, "ours")
        reads: list[tuple[Store, Goal | None]] = [(ours, at_least(0.6))]
        writes: list[tuple[Store, Goal | None]] = [(ours, None)]
        try:
            kafka.obtain(), spark_kafka.obtain()
        except Unavailable as error:
            report.say(f"  without Kafka: {error}")
        else:
            server = stack.enter_context(kafka.cluster(place / "kafka", settings={"num.partitions": str(PARTS)}))
            theirs = KafkaRows(stack.enter_context(kafka_side(place / "kafka.log")), count, server, "kafka")
            reads.append((theirs, at_least(1.5)))
            writes.append((theirs, at_least(0.8)))
        warm(scene, pulsar, *(store for store, _ in reads))
        found: list[Outcome] = []
        for name, title in QUERIES.items():
            found += compared(name, f"read: {title}", pulsar, reads, rounds)
        return found + compared("write", "write, effectively once", pulsar, writes, rounds)


def micro_batch(scene: Scene, rounds: int = ROUNDS) -> list[Outcome]:
    spark = open_session("local[2]", "bench")
    try:
        with pulsar_of(scene.place("micro") / "node") as node:
            options = {"serviceUrl": node.service_url, "adminUrl": node.http_url, "topic": "micro"}
            mine, theirs = trigger_times(scene, spark, rounds, options)
    finally:
        spark.stop()
    return [
        Outcome(
            "pulsar-micro-batch",
            "fixed cost of a micro-batch",
            Series("pulsar", "ms", mine),
            Series("rate source", "ms", theirs),
            at_most(2.5),
        )
    ]


def main(arguments: list[str] | None = None) -> int:
    rows, rounds, rest = sizes(arguments)
    measures: dict[str, Run] = {
        "batch": partial(batch, rows=rows, rounds=rounds),
        "micro-batch": partial(micro_batch, rounds=rounds),
    }
    return report.run("benchmarks.spark_pulsar [--rows N] [--rounds N]", measures, (), rest, mark="-spark-pulsar")


if __name__ == "__main__":
    raise SystemExit(main())
