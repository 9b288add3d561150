"""Deduplication of one topic: switched on and off, asked for a producer's last sequence, snapshot as time goes by.

The machine is `dedup.Sequences`, and the publisher works with it; what it knows after a restart is read back by
`sequence_recovery`. Knows the topic's log and its publisher; must not know policies or connections.
"""

from __future__ import annotations

from anabranch.broker.publish.publisher import Publisher
from anabranch.broker.publish.sequence_ids import STATE, Last, Sequences
from anabranch.broker.publish.sequence_recovery import recover_sequences
from anabranch.storage.topic.topic_log import TopicLog


class Deduplication:
    __slots__ = ("_log", "_publisher", "_read_bytes", "_snapshot_at")

    def __init__(self, topic_log: TopicLog, publisher: Publisher, read_bytes: int, now: float) -> None:
        self._log = topic_log
        self._publisher = publisher
        self._read_bytes = read_bytes
        self._snapshot_at = now

    @property
    def is_on(self) -> bool:
        return self._publisher.sequences is not None

    async def switch(self, enabled: bool) -> None:
        """Switched on anew it knows nothing of the past; switched off it forgets."""
        saved = self._log.state(STATE)
        if not enabled:
            self._publisher.sequences = None
            if saved:
                await self._log.save_state(STATE, b"")
        elif self._publisher.sequences is None:
            if not saved:
                await self._log.save_state(STATE, Sequences().dump(self._log.last_position))
            self._publisher.sequences = await recover_sequences(self._log, self._read_bytes)

    def last_sequence(self, producer_name: str) -> int:
        sequences = self._publisher.sequences
        return -1 if sequences is None else sequences.last(producer_name)

    def last_of(self, producer_name: str) -> Last:
        sequences = self._publisher.sequences
        return Last() if sequences is None else sequences.last_of(producer_name)

    def last_sequences(self) -> tuple[tuple[str, int], ...]:
        """Of all producers, by name: what is stored."""
        sequences = self._publisher.sequences
        return () if sequences is None else tuple(sorted(sequences.persisted.items()))

    def snapshot_when_due(self, every_seconds: int, now: float) -> None:
        """0: not by time."""
        if every_seconds and now - self._snapshot_at >= every_seconds:
            self._snapshot_at = now
            self._publisher.snapshot_settled()
