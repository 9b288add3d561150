"""A publisher on a real topic log in memory, whose durability is an event of the test."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.publish.producer import Producer, Publish, Window
from anabranch.broker.publish.producer_access import AccessMode
from anabranch.broker.publish.publisher import Publisher
from anabranch.broker.publish.sequence_ids import Sequences
from anabranch.model.errors import Error
from anabranch.storage.topic.topic_log import TopicLogSettings
from tests.support.in_memory.broker_fakes import RecordingPeer
from tests.support.in_memory.topic_log import TopicWorld


def make_producer(
    peer: RecordingPeer | None = None, *, name: str = "p", window: Window | None = None, credits: bool = False
) -> Producer:
    return Producer(
        peer or RecordingPeer(),
        producer_id=1,
        request_id=1,
        name=name,
        partition=-1,
        epoch=0,
        mode=AccessMode.SHARED,
        metadata={},
        window=window or Window(1 << 20, 1_000),
        grants_credits=credits,
        connected_ms=0,
    )


def send(producer: Producer, sequence: int, *, last_chunk: bool = True, messages: int = 1) -> Publish:
    return Publish(producer, sequence, 0, sequence + messages - 1, messages, b"%03d" % sequence, last_chunk)


class PublishWorld(TopicWorld):
    """A publisher on a real topic log whose durability is an event of the test."""

    async def start(self, sequences: Sequences | None = None) -> Publisher:
        self.log = await self.open(TopicLogSettings(retention_ms=-1, retention_bytes=-1))
        self.persisted = 0
        self.failures: list[str] = []
        self.on_failed: Callable[[], None] = lambda: None
        self.publisher = Publisher(
            self.log, sequences, snapshot_entries=1_000, on_persisted=self._persisted, on_failed=self._failed
        )
        return self.publisher

    def _persisted(self) -> None:
        self.persisted += 1

    def _failed(self, error: Error) -> None:
        self.failures.append(error.code)
        self.on_failed()
