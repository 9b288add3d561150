"""Metadata writes of a broker whose segments have steady load. The number to reach is 0.

Expected before measuring: an owner writes the first report of each segment and nothing after it; the leader stores
only decisions that say something new. The counters of the publish path are advanced directly, because 10,000 producers
would measure something else; reporter, leader and store are those of a real node, and the store counts its writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from anabranch.broker.segment.owned_segment import OwnedSegment, segment_of
from anabranch.metadata.interface import Expected, MetadataStore, Session, Version
from anabranch.node.node import Node
from anabranch.node.settings.node import NodeSettings
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from benchmarks.support.measure import Outcome, Scene, Series, at_most
from tests.support.processes.scalable_nodes import admin_of, plain_settings, service_of

SEGMENTS_PER_TOPIC = 1_000
RATES = (0.0, 20.0, 90.0, 400.0)
"""Messages per second of a quarter of the segments each: idle, and on each side of thresholds and of the trifle below
which nothing is reported."""
TICK_SECONDS = 0.5
SETTLE_SECONDS = 75  # one window of 60 s, and looks after it
SETTLE_SECONDS_MAX = 900
POLICY = {
    "auto_scale_enabled": True,
    "split_msg_rate_in_threshold": 500.0,
    "split_bytes_rate_in_threshold": 500_000,
    "merge_msg_rate_in_threshold": 100.0,
    "merge_bytes_rate_in_threshold": 100_000,
    "max_segments": 20_000,
    "merge_window_seconds": 86_400,
    "create_seconds": 120.0,
    "call_seconds": 120.0,
}


class CountedWrites:
    """Puts and deletes of a store, by key."""

    def __init__(self, store: MetadataStore) -> None:
        self.keys: list[str] = []
        put, delete = store.put, store.delete

        async def counted_put(key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
            self.keys.append(key)
            return await put(key, value, expected=expected, session=session)

        async def counted_delete(key: str, *, expected: Expected) -> None:
            self.keys.append(key)
            await delete(key, expected=expected)

        store.put, store.delete = counted_put, counted_delete  # type: ignore[method-assign]  # counts and passes on


class SteadySegments:
    """All segments of a node, with counters that grow evenly."""

    def __init__(self, node: Node, segments: Sequence[OwnedSegment], writes: CountedWrites) -> None:
        """`writes` counts since before the first segment was created: an idle one reports once, maybe at once."""
        self.writes = writes
        self._node, self._segments = node, segments
        self._carried = [0.0] * len(segments)

    @property
    def reported(self) -> int:
        """Segments that have reported their load."""
        return len({key for key in self.writes.keys if key.endswith("/load")})

    async def run(self, seconds: float) -> None:
        """Traffic for so long."""
        began = last = time.monotonic()
        while last - began < seconds:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            self._advance(now - last)
            last = now

    def _advance(self, seconds: float) -> None:
        for number, segment in enumerate(self._segments):
            due = self._carried[number] + RATES[number % len(RATES)] * seconds
            count = int(due)
            self._carried[number] = due - count
            if count:
                segment.topic.publisher.messages_in += count
                segment.topic.publisher.bytes_in += 100 * count
                self._node.services.topics.activity.mark(segment.topic)


@asynccontextmanager
async def steady_segments(scene: Scene, topics: int, each: int, **settings: Any) -> AsyncIterator[SteadySegments]:
    chosen = replace(ScalableTopicSettings(), **{**POLICY, **settings})
    broker = replace(NodeSettings().broker, idle_topic_seconds=3_600.0)  # idle segments stay while others are made
    node_settings = plain_settings(scene.place("steady"), scalable_topics=chosen, broker=broker)
    async with Node(node_settings) as node:
        admin, writes = admin_of(node), CountedWrites(service_of(node).records._store)
        for number in range(topics):
            await admin.create(f"topic://public/default/steady-{number}", each, {})
        yield SteadySegments(node, list(_segments(node)), writes)


def _segments(node: Node) -> Iterator[OwnedSegment]:
    for topic in node.services.topics:
        segment = segment_of(topic)
        if segment is not None:
            yield segment


async def settle(found: SteadySegments, seconds: float) -> int:
    """Traffic until each segment has reported its load and nothing was written for so long. Returns the reports."""
    until = time.monotonic() + SETTLE_SECONDS_MAX
    seen = -1
    while seen != len(found.writes.keys) or found.reported < len(found._segments):
        assert time.monotonic() < until, f"{found.reported} of {len(found._segments)} segments have reported"
        seen = len(found.writes.keys)
        await found.run(seconds)
    return found.reported


def steady(scene: Scene) -> list[Outcome]:
    topics, each = scene.size(10, 2), scene.size(SEGMENTS_PER_TOPIC, 20)
    seconds = scene.size(60, 3)

    async def work() -> tuple[int, int, list[str]]:
        async with steady_segments(scene, topics, each) as found:
            first = await settle(found, scene.size(SETTLE_SECONDS, 14))
            before = len(found.writes.keys)
            await found.run(seconds)
            return first, len(found._segments), found.writes.keys[before:]

    first, count, written = asyncio.run(work())
    assert first == count == topics * each, f"{first} first reports of {count} segments"
    return [
        Outcome(
            "steady",
            f"metadata writes, {count:,} segments with steady load",
            Series("writes", "1/s", (len(written) / seconds,)),
            None,
            at_most(0),
            {"first reports": first, "keys": written[:10]},
        )
    ]
