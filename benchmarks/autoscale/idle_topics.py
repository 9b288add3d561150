"""CPU of a broker with 10,000 idle topics while auto-scaling is on, against the same while it is off.

Expected before measuring: no difference. An idle segment reports that it is idle, once; a topic that is idle and at its
floor has no timer, no task and no leader. What a broker uses at rest are its own few ticks, about 2 ms CPU per second.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import anabranch.admin
from benchmarks.support.measure import Outcome, Scene, Series, at_most
from tests.support.processes.broker_process import BrokerProcess

TOGETHER = 16
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
UNLOAD = {"idle_seconds": "10", "sweep_seconds": "10"}
SETTLE_SECONDS = 45  # reports, the end of meters and the unloading of leaders


def topics(scene: Scene) -> list[Outcome]:
    count, seconds, settle = scene.size(10_000, 20), scene.size(60, 2), scene.size(SETTLE_SECONDS, 1)

    def used(is_on: bool) -> float:
        place = scene.place(f"topics-{'on' if is_on else 'off'}")
        return asyncio.run(_cpu_ms_per_second(place, is_on, count, settle, seconds))

    off, on = used(False), used(True)
    return [
        Outcome(
            "topics",
            f"CPU of a broker with {count:,} idle topics, auto-scaling on; against off",
            Series("on", "ms/s", (on,)),
            Series("off", "ms/s", (off,)),
            at_most(1.2),
        )
    ]


async def _cpu_ms_per_second(place: Path, is_on: bool, count: int, settle: float, seconds: float) -> float:
    chosen = {"auto_scale_enabled": str(is_on).lower(), **UNLOAD}
    arguments = [word for name, value in chosen.items() for word in ("--set", f"scalable_topics.{name}={value}")]
    broker = BrokerProcess(place / "data", arguments=arguments)
    try:
        await asyncio.to_thread(broker.start)
        async with anabranch.admin.connect(broker.http_url) as admin:
            numbers = iter(range(count))

            async def create() -> None:
                for number in numbers:
                    await admin.scalable_topics.create(f"topic://public/default/idle-{number}")

            await asyncio.gather(*(create() for _ in range(TOGETHER)))
        await asyncio.sleep(settle)
        began, before = time.monotonic(), _cpu_seconds(broker.pid)
        await asyncio.sleep(seconds)
        spent = _cpu_seconds(broker.pid) - before
        return max(spent, 1 / TICKS_PER_SECOND) * 1000 / (time.monotonic() - began)
    finally:
        await asyncio.to_thread(broker.close)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
