"""What deduplication knows after a restart: the last snapshot, then what was written after it. Reads a log only."""

from __future__ import annotations

import logging

from anabranch.broker.publish.sequence_ids import STATE, Sequences, highest_of
from anabranch.model.position import EARLIEST
from anabranch.protocol import entry as entries
from anabranch.protocol.commands import signed
from anabranch.protocol.errors import ProtocolError
from anabranch.storage.topic.topic_log import TopicLog

log = logging.getLogger(__name__)

REPLAY_ENTRIES = 1_000


async def recover_sequences(topic_log: TopicLog, read_bytes: int) -> Sequences:
    """The last snapshot, then whatever was written after it, up to the first hole.

    A power cut can tear the last group: an entry that was never confirmed is missing, a later one is there. Were the
    later one counted, the missing one would be taken for its duplicate when its producer sends it again.
    """
    sequences, upto = Sequences.load(topic_log.state(STATE))
    position = topic_log.after(upto) if upto != EARLIEST else topic_log.first_position
    while position <= (last := topic_log.last_position):  # which grows while we read, when switched on in flight
        found = await topic_log.read(position, REPLAY_ENTRIES, read_bytes, last)
        if not found:
            break
        for stored in found:
            if stored.position != position:
                log.warning("hole in the log, later sequences are not counted", extra={"topic": topic_log.name})
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
