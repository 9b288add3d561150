"""A broker in this process whose scalable topics tests create, split and merge, with traffic at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anabranch.admin import blocking
from anabranch.admin.blocking.scalable import ScalableTopics
from anabranch.testing.broker import Broker
from tests.support.spark.session import Traffic

RETRY_DELAYS = 60.0


class ScalableBroker(Broker):
    """Beside what clients can do: what an administrator does, over REST."""

    def create(self, topic: str, segments: int) -> None:
        with self._topics() as topics:
            topics.create(topic, segments=segments)

    def split(self, topic: str, segment: int, into: int = 2) -> None:
        with self._topics() as topics:
            topics.split(topic, segment, into=into)

    def merge(self, topic: str, segments: list[int]) -> None:
        with self._topics() as topics:
            topics.merge(topic, segments)

    def active(self, topic: str) -> list[int]:
        """Ids of the segments that take messages, in ring order."""
        with self._topics() as topics:
            record = topics.metadata(topic)
        found = [one for one in record["segments"].values() if one["state"] == "ACTIVE"]
        return [one["segmentId"] for one in sorted(found, key=lambda one: one["hashRange"]["start"])]

    def segments(self, topic: str) -> list[int]:
        """Ids of all that are there, sealed ones too."""
        with self._topics() as topics:
            return sorted(int(one) for one in topics.metadata(topic)["segments"])

    def subscription(self, topic: str, name: str) -> dict[str, Any]:
        with self._topics() as topics:
            return topics.subscription(topic, name)

    def unsubscribe(self, topic: str, name: str) -> None:
        with self._topics() as topics:
            topics.delete_subscription(topic, name, force=True)

    @contextmanager
    def _topics(self) -> Iterator[ScalableTopics]:
        with blocking.connect(self.http_url, timeout=RETRY_DELAYS) as admin:
            yield admin.scalable_topics


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
        self._thread.join(RETRY_DELAYS)
        if self._failure is not None:
            raise self._failure
