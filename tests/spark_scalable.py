"""A broker in this process whose scalable topics tests create, split and merge, and traffic that goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from anabranch.broker.scalable_admin import ScalableAdmin
from anabranch.testing.broker import Broker, _node_settings
from tests.spark_rig import Traffic

PATIENCE = 60.0


class ScalableBroker(Broker):
    """Beside what clients can do: what an administrator does."""

    _admin: ScalableAdmin

    async def _serve(self, ready: Future[tuple[str, str]]) -> None:
        from anabranch.node.node import Node

        directory = Path(self._temporary.name if self._temporary is not None else ".")
        async with Node(_node_settings(self._directory or directory, self._overrides)) as node:
            self._stop = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            self._admin = ScalableAdmin(lambda: node.services)
            ready.set_result((node.service_url, node.http_url))
            await self._stop.wait()

    def do(self, work: Callable[[ScalableAdmin], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await work(self._admin)

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE)

    def create(self, topic: str, segments: int) -> None:
        self.do(lambda admin: admin.create(topic, segments, {}))

    def split(self, topic: str, segment: int, into: int = 2) -> None:
        self.do(lambda admin: admin.split(topic, segment, into, None, None))

    def merge(self, topic: str, segments: list[int]) -> None:
        self.do(lambda admin: admin.merge(topic, segments, None))

    def active(self, topic: str) -> list[int]:
        """Ids of the segments that take messages, in ring order."""
        record = self.do(lambda admin: admin.metadata(topic))
        found = [one for one in record["segments"].values() if one["state"] == "ACTIVE"]
        return [one["segmentId"] for one in sorted(found, key=lambda one: one["hashRange"]["start"])]


class Unrest:
    """Publishes without pause while the topic changes shape; `stop` and everything sent is stored."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Unrest:
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.05):
                self._traffic.publish(5)
        except BaseException as error:
            self._failure = error

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE)
        if self._failure is not None:
            raise self._failure
