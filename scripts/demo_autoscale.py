"""The demo's second part: load rises and falls, and a topic splits and merges by itself; the report says why each time.

The thresholds are far below the defaults, so that a minute shows what a day does.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anabranch import Client, MessageId, StreamConsumer
from anabranch.admin import Admin
from scripts.demo_show import Show
from tests.support.traffic.delivery_audit import Numbered, by_stream, decode, encode, judge

TOPIC = "topic://public/default/clicks"
POLICY = {
    "enabled": True,
    "maxSegments": 8,
    "splitFactorMax": 4,
    "splitRateWindowSeconds": 5,
    "splitMsgRateInThreshold": 400,
    "mergeMsgRateInThreshold": 200,
    "mergeFactorMax": 4,
    "splitCooldownSeconds": 2,
    "mergeCooldownSeconds": 2,
    "mergeWindowSeconds": 3,
}
LOW, HIGH = 60.0, 1_500.0  # messages per second
CURVE = ((0.1, LOW), (0.25, HIGH), (0.45, HIGH), (0.6, LOW), (1.0, LOW))
"""Share of the time, and the rate then; it goes in straight lines from one to the next."""
KEYS = 200
TICK_SECONDS = 0.005
POLL_SECONDS = 0.3
PATIENCE_SECONDS = 60.0


def rate_at(share: float) -> float:
    before, low = 0.0, LOW
    for end, rate in CURVE:
        if share <= end:
            return low + (rate - low) * (share - before) / (end - before)
        before, low = end, rate
    return low


@dataclass
class Clicks:
    """What was sent and what was read."""

    sent: list[Numbered] = field(default_factory=list)
    read: list[Numbered] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    rate: float = LOW

    async def publish(self, client: Client, seconds: float) -> None:
        async with client.producer(TOPIC, name="clicks") as producer:
            began = last = time.monotonic()
            due = 0.0
            while last - began < seconds:
                await asyncio.sleep(TICK_SECONDS)
                now = time.monotonic()
                self.rate = rate_at((now - began) / seconds)
                due += self.rate * (now - last)
                last = now
                while len(self.sent) < due:
                    message = (f"user-{len(self.sent) % KEYS}", len(self.sent) // KEYS)
                    self.sent.append(message)
                    future = producer.send_nowait(encode(*message, 100), key=message[0])
                    future.add_done_callback(partial(self._outcome))
            await producer.flush(timeout=PATIENCE_SECONDS)

    def _outcome(self, future: asyncio.Future[MessageId]) -> None:
        if future.cancelled() or (error := future.exception()) is not None:
            self.errors.append(asyncio.CancelledError() if future.cancelled() else error)  # type: ignore[arg-type]  # not cancelled: it has one

    async def follow(self, consumer: StreamConsumer) -> None:
        async for message in consumer:
            self.read.append(decode(message.value))
            await consumer.ack_cumulative(message)


async def scale_by_itself(client: Client, admin: Admin, seconds: float, show: Show) -> bool:
    """Whether the topic has split and merged, and everything was read once and in order."""
    show.say(f"\n  Now nobody splits or merges: for {seconds:.0f} s load rises and falls on a topic that scales itself")
    topics, clicks = admin.scalable_topics, Clicks()
    await topics.create(TOPIC, segments=1)
    await topics.set_auto_scale_policy(TOPIC, POLICY)
    async with client.stream_consumer(TOPIC, subscription="clicks", start="earliest") as consumer:
        reading = asyncio.ensure_future(clicks.follow(consumer))
        publishing = asyncio.ensure_future(clicks.publish(client, seconds))
        try:
            seen, actions = 0, list[str]()
            while not publishing.done():
                await asyncio.sleep(POLL_SECONDS)
                seen = await _show_new(topics, seen, actions, clicks, show)
            await publishing
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not _is_over(clicks, actions) and time.monotonic() < deadline:
                await asyncio.sleep(POLL_SECONDS)
                seen = await _show_new(topics, seen, actions, clicks, show)
        finally:
            publishing.cancel()
            reading.cancel()
            await asyncio.gather(publishing, reading, return_exceptions=True)
    return _report(clicks, actions, show)


def _is_over(clicks: Clicks, actions: list[str]) -> bool:
    return len(clicks.read) >= len(clicks.sent) and {"split", "merge"} <= set(actions)


async def _show_new(topics: Any, seen: int, actions: list[str], clicks: Clicks, show: Show) -> int:
    """Prints the decisions that are newer than `seen` (their time). Returns the time of the newest."""
    status = await topics.autoscale(TOPIC)
    show.progress(f"{clicks.rate:,.0f} messages/s, {status['activeSegments']} segments")
    for one in reversed(status["decisions"]):
        if one["atMs"] > seen and one["action"] != "none" and "outcome" in one:
            seen = one["atMs"]
            actions.append(one["action"])
            parts = f" in {len(one['points']) + 1}" if one["action"] == "split" else ""
            segments = ", ".join(map(str, one["segments"]))
            show.say(f"    {clicks.rate:>5,.0f}/s  {one['action']} {segments}{parts}: {one['detail']}")
    return seen


def _report(clicks: Clicks, actions: list[str], show: Show) -> bool:
    verdict = judge(by_stream(clicks.sent), by_stream(clicks.read))
    counts = f"lost {show.count(len(verdict.lost))}, reordered {show.count(len(verdict.out_of_order))}"
    show.row("changes by the topic itself", f"{actions.count('split')} splits, {actions.count('merge')} merges")
    show.row(
        "stream, every key in order", f"{verdict.read:,} read, {counts}, duplicated {show.count(verdict.repeated)}"
    )
    return verdict.holds and not verdict.repeated and not clicks.errors and {"split", "merge"} <= set(actions)
