"""What operating costs: an admin poller beside full publish load, TLS, and /metrics of 10,000 topics.

Expected before measuring. Stats of a topic take about 0.5 ms of the loop with HTTP around it; 50 a second are 2.5 % of
it, so publishing keeps 0.95 of its rate. A request waits for the step that the loop is in: p99 a few milliseconds. TLS
costs about 1 ns a byte on each side with AES instructions and passes through one more copy: 0.6-0.9 of the plain rate
at 10 KB entries. /metrics: see `micro_metrics`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.micro import metrics as micro_metrics
from benchmarks.support.floors import ROOT
from benchmarks.support.measure import Outcome, Scene, Series, at_least, at_most, percentile, side_by_side
from benchmarks.support.raw_wire import Wire, one_message, publish, send_frames
from benchmarks.support.stats_poller import Poller
from tests.support.in_memory.credentials import Authority
from tests.support.processes.broker_process import BrokerProcess, free_port
from tests.support.traffic.stock_client import new_client

POLLS_PER_SECOND = 50
WINDOW = 4000
TLS_BYTES = 10_000
CLIENT = "import sys; from benchmarks.broker.operating import produce; produce(*sys.argv[1:])"


def poller(scene: Scene) -> list[Outcome]:
    """Small entries, pipelined, to a topic whose stats are asked for meanwhile."""
    rounds, count = scene.size(9, 1), scene.size(250_000, 3_000)
    frames = send_frames(one_message(100), count)
    latencies: list[float] = []
    p99: list[float] = []
    with BrokerProcess(scene.place("admin-poller") / "data") as broker, Wire(broker.port) as first:
        first.produce("bench-polled")
        first.subscribe("bench-polled", "s")

        def rate() -> float:
            with Wire(broker.port) as wire:
                wire.produce("bench-polled")
                return count / publish(wire, frames, WINDOW, lambda receipts: None)

        def polled() -> float:
            path = "/admin/v2/persistent/public/default/bench-polled/stats"
            with Poller(broker.http_url, path, POLLS_PER_SECOND) as polling:
                found = rate()
            latencies.extend(polling.latencies)
            p99.append(percentile(polling.latencies, 0.99) if polling.latencies else 0.0)
            return found

        rate()
        with_poller, without = side_by_side(rounds, polled, rate)
    return [
        Outcome(
            "admin-poller",
            f"publish with {POLLS_PER_SECOND} GET stats/s",
            Series("with", "entries/s", with_poller),
            Series("without", "entries/s", without),
            at_least(0.9),
            {"entries": count, "window": WINDOW, "polls": len(latencies)},
        ),
        Outcome(
            "stats-under-load",
            "GET stats under full publish load, p99",
            Series("GET stats", "ms", tuple(p99)),
            None,
            None,
            {"p50_ms": percentile(latencies, 0.5) if latencies else None, "p99_ms": percentile(latencies, 0.99)},
        ),
    ]


def produce(url: str, topic: str, count: str, authority: str) -> None:
    """One process of the stock client; prints messages per second."""
    options = {"tls_trust_certs_file_path": authority} if url.startswith("pulsar+ssl") else {}
    client = new_client(url, **options)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=500)
    payload = b"x" * TLS_BYTES
    producer.send(payload)
    start = time.perf_counter()
    for _ in range(int(count)):
        producer.send_async(payload, None)
    producer.flush()
    print(int(count) / (time.perf_counter() - start))
    client.close()


def tls(scene: Scene) -> list[Outcome]:
    """The stock client over TLS against the same without, to the same broker."""
    rounds, count = scene.size(7, 1), scene.size(20_000, 200)
    place = scene.place("tls")
    authority = Authority(place)
    files, port, http_port = authority.issue("localhost"), free_port(), free_port()
    words = {"cert_file": files.certificate, "key_file": files.key, "port": port, "http_port": http_port}
    arguments = [word for name, value in words.items() for word in ("--set", f"tls.{name}={value}")]
    with BrokerProcess(place / "data", arguments=arguments) as broker:

        def rate(url: str, topic: str) -> float:
            command = [sys.executable, "-c", CLIENT, url, topic, str(count), str(authority.path)]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
            return float(done.stdout)

        encrypted = f"pulsar+ssl://localhost:{port}"
        rate(broker.service_url, "bench-plain")
        rate(encrypted, "bench-tls")
        plain, secure = side_by_side(
            rounds, lambda: rate(broker.service_url, "bench-plain"), lambda: rate(encrypted, "bench-tls")
        )
    return [
        Outcome(
            "tls",
            f"publish over TLS, stock client, {TLS_BYTES // 1000} KB",
            Series("TLS", "messages/s", secure),
            Series("plain", "messages/s", plain),
            None,
            {"messages": count},
        )
    ]


def metrics(scene: Scene) -> list[Outcome]:
    """/metrics of many topics: the longest of some scrapes, and how long the loop was held."""
    topics = scene.size(10_000, 100)
    rows = asyncio.run(micro_metrics.measure(topics, Path(scene.place("metrics"))))
    return [
        Outcome(
            "metrics-many-topics",
            f"/metrics of {topics} topics",
            Series("scrape", "s", tuple(row["seconds"] for row in rows)),
            None,
            at_most(1),
            {"rows": rows},
        ),
        Outcome(
            "metrics-loop-held",
            "event loop held meanwhile, longest step (CPU)",
            Series("step", "ms", (max(row["longest_step_cpu_ms"] for row in rows),)),
            None,
            at_most(50),
            {"wall_ms": [row["loop_held_ms"] for row in rows]},
        ),
    ]
