"""Deduplication of one topic: switching, recovery after a restart, periodic snapshots.

`sequence_ids.Sequences` decides; the publisher uses it for every entry.
"""

from __future__ import annotations

from anabranch.broker.publish.publisher import Publisher
from anabranch.broker.publish.sequence_ids import STATE, Last, Sequences, highest_of
from anabranch.model.position import EARLIEST
from anabranch.protocol import entry as entries
from anabranch.protocol.commands import signed
from anabranch.protocol.errors import ProtocolError
from anabranch.runtime.logs import get_logger
from anabranch.storage.topic.topic_log import TopicLog

log = get_logger(__name__)

REPLAY_ENTRIES = 1_000


async def recover_sequences(topic_log: TopicLog, read_bytes: int) -> Sequences:
    """Load the last snapshot and replay the entries after it, up to the first hole.

    A power failure can tear the last group: an unconfirmed entry is missing and a later one is there. If the later one
    counted, the missing entry would be rejected as a duplicate when its producer sends it again.
    """
    sequences, upto = Sequences.load(topic_log.state(STATE))
    position = topic_log.after(upto) if upto != EARLIEST else topic_log.first_position
    while position <= (
        last := topic_log.last_position
    ):  # grows during the replay when deduplication is switched on under load
        found = await topic_log.read(position, REPLAY_ENTRIES, read_bytes, last)
        if not found:
            break
        for stored in found:
            if stored.position != position:
                log.warning("entry missing in the log, later sequence ids are ignored", extra={"topic": topic_log.name})
                return sequences
            position = topic_log.after(stored.position)
            try:
                metadata = entries.metadata(stored.payload)
            except ProtocolError:
                continue
            chunks = metadata.num_chunks_from_msg
            if chunks <= 1 or metadata.chunk_id == chunks - 1:
                highest = highest_of(signed(metadata.sequence_id), signed(metadata.highest_sequence_id))
                sequences.persist(metadata.producer_name, highest, metadata.producer_note)
    return sequences


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
        """When switched on, only new entries count; when switched off, the table is dropped."""
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
        """Last persisted sequence id of each producer name, sorted by name."""
        sequences = self._publisher.sequences
        return () if sequences is None else tuple(sorted(sequences.persisted.items()))

    def snapshot_when_due(self, every_seconds: int, now: float) -> None:
        """`every_seconds` 0: no snapshots by time."""
        if every_seconds and now - self._snapshot_at >= every_seconds:
            self._snapshot_at = now
            self._publisher.snapshot_persisted()
