"""`/metrics` of a broker with many topics: how long a scrape takes, and how long the event loop is held meanwhile.

Expected before measuring: 10,000 topics with a subscription each are 230,000 lines; gathering costs 10 µs a topic and
writing 1 µs a line, so 0.3-0.5 s. The loop is given back every 5 ms of work, so it is held 5-15 ms at most. Wall-clock
figures of the loop include what other processes take from the machine; the CPU time of its longest step does not.

    python benchmarks/micro/metrics.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST
from anabranch.node.node import Node
from anabranch.node.settings.node import NodeSettings

SCRAPES = 5
CLIENT = (
    "import sys, time, urllib.request\n"
    "began = time.perf_counter()\n"
    "size = len(urllib.request.urlopen(sys.argv[1] + '/metrics').read())\n"
    "print(time.perf_counter() - began, size)"
)


class Probe:
    """Looks in on the loop every millisecond."""

    def __init__(self) -> None:
        self.held_ms = 0.0
        self.step_cpu_ms = 0.0

    async def run(self) -> None:
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            self.held_ms = max(self.held_ms, (time.perf_counter() - wall - 0.001) * 1000)
            self.step_cpu_ms = max(self.step_cpu_ms, (time.thread_time() - cpu) * 1000)


async def scrape(url: str) -> dict[str, float]:
    """One scrape by a separate process."""
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, url, stdout=asyncio.subprocess.PIPE)
    probe = Probe()
    watching = asyncio.get_running_loop().create_task(probe.run())
    began = time.process_time()
    text, _ = await client.communicate()
    cpu = time.process_time() - began
    watching.cancel()
    seconds, size = text.split()
    return {
        "seconds": round(float(seconds), 3),
        "megabytes": round(int(size) / 1e6, 1),
        "cpu_seconds": round(cpu, 3),
        "loop_held_ms": round(probe.held_ms, 1),
        "longest_step_cpu_ms": round(probe.step_cpu_ms, 1),
    }


async def measure(topics: int, place: Path | None = None) -> list[dict[str, float]]:
    default = NodeSettings()
    with tempfile.TemporaryDirectory(dir=place) as directory:
        settings = replace(
            default,
            storage=replace(default.storage, dir=Path(directory), sync="none"),
            network=replace(default.network, port=0),
            http=replace(default.http, port=0),
            broker=replace(default.broker, idle_topic_seconds=1e6, sweep_seconds=1e6),
        )
        async with Node(settings) as node:
            for number in range(topics):
                name = TopicName.parse(f"bench-{number}")
                await node.services.topics.create(name)
                topic = await node.services.topics.get(name, create=False)
                assert isinstance(topic, Topic)
                await topic.create_subscription("s", topic.resolve(EARLIEST), {})
            return [{"topics": topics, **await scrape(node.http_url)} for _ in range(SCRAPES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200 topics")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = asyncio.run(measure(200 if options.quick else 10_000))
    if options.json:
        print(json.dumps({"rows": rows}))
        return
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
