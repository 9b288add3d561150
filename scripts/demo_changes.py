"""What happens to the topic while the demo runs: splits, merges, a broker that is killed; the segments are drawn after
each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.admin.scalable import ScalableTopics
from anabranch.cli.output.scalable_topic import bar
from scripts.demo_show import Show
from tests.support.processes.cluster import ClusterProcesses

AROUND_SECONDS = 0.5  # what belongs to a change, before and after


class Progress(Protocol):
    async def wait_share(self, share: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Change:
    what: str
    began: float
    ended: float
    is_kill: bool = False


class Changes:
    def __init__(self, topics: ScalableTopics, topic: str, cluster: ClusterProcesses, show: Show) -> None:
        self._topics = topics
        self._topic = topic
        self._cluster = cluster
        self._show = show
        self._active: list[int] = []
        self.done: list[Change] = []

    async def run(self, progress: Progress) -> None:
        """One after another, as the traffic goes on."""
        steps: list[Callable[[], Any]] = [
            lambda: self._split(0, 2),
            lambda: self._split(-1, 2),
            self._kill,
            lambda: self._split(1, 3),
            lambda: self._merge(0, 2),
            lambda: self._merge(1, 3),
        ]
        for number, step in enumerate(steps, 1):
            await progress.wait_share(number / (len(steps) + 1.5))
            await step()

    async def _split(self, index: int, ways: int) -> None:
        segment = self._active[index]
        await self._changed(
            f"segment {segment} split in {ways}", lambda: self._topics.split(self._topic, segment, into=ways)
        )

    async def _merge(self, first: int, count: int) -> None:
        segments = self._active[first : first + count]
        names = ", ".join(map(str, segments))
        await self._changed(f"segments {names} merged", lambda: self._topics.merge(self._topic, segments))

    async def _changed(self, what: str, change: Callable[[], Any]) -> None:
        began = time.monotonic()
        await change()
        ended = time.monotonic()
        self.done.append(Change(what, began, ended))
        await self.picture(f"{what} in {(ended - began) * 1000:.0f} ms")

    async def _kill(self) -> None:
        """Not the one that we ask: it has some of the segments."""
        *_, victim = self._cluster.brokers.values()
        began = time.monotonic()
        await asyncio.to_thread(victim.kill9)
        await asyncio.to_thread(self._cluster.revive)
        self.done.append(Change("one broker killed", began, time.monotonic(), is_kill=True))
        await self.picture("one broker killed with -9, and started again")

    async def picture(self, what: str) -> None:
        found: Mapping[str, Any] = await self._topics.metadata(self._topic)
        segments = [(int(key), one) for key, one in found["segments"].items() if one["state"] == "ACTIVE"]
        segments.sort(key=lambda one: int(one[1]["hashRange"]["start"]))
        self._active = [key for key, _ in segments]
        self._show.say(f"\n  epoch {found['epoch']}: {what}")
        for line in bar(segments):
            self._show.say(f"    {line}")

    def is_near(self, moment: float, *, is_kill: bool) -> bool:
        return any(
            one.began - AROUND_SECONDS <= moment <= one.ended + AROUND_SECONDS
            for one in self.done
            if one.is_kill is is_kill
        )
