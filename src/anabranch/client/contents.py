"""What one entry holds for the application: columns first, messages when they are asked for. Knows how an entry and its
messages describe themselves; nothing of acks and connections.
"""

from __future__ import annotations

from anabranch.client.message import Message, MessageId
from anabranch.codec import NO_SEQUENCE, Body, Columns, core
from anabranch.codec.run import key_of, keys_of, longs, pieces, properties_of
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes
from anabranch.protocol.errors import BadEntry


class Contents:
    """The messages of one entry, whose payload is opened already. Raises BadEntry for what does not keep to the
    layout."""

    __slots__ = ("_body", "_columns", "_of", "compacted", "size")

    def __init__(self, of: pb.MessageMetadata, body: Bytes) -> None:
        self._of = of
        self._body = body
        self._columns: Columns | None = None
        self.size = 0  # of the batch; 0: one message alone
        self.compacted = 0  # bits: slots that compaction has emptied
        if not of.HasField("num_messages_in_batch"):
            return
        self.size = of.num_messages_in_batch
        if self.size < 1:
            raise BadEntry(f"batch of {self.size} messages")
        self._columns = columns = core.decode((Body(body, self.size),))
        if columns.rows != self.size:
            self.compacted = (1 << self.size) - 1
            for index in memoryview(columns.index).cast("B").cast("i"):
                self.compacted &= ~(1 << index)

    def messages(self, topic: str, lane: int, place: tuple[int, int], wanted: int, redeliveries: int) -> list[Message]:
        """Those whose bits are set in `wanted`, in order."""
        of, columns = self._of, self._columns
        time, name, version = of.publish_time, of.producer_name, of.schema_version
        ledger, entry = place
        size = self.size
        if columns is None:
            if not wanted & 1:
                return []
            key = key_of(of.partition_key, of.partition_key_b64_encoded) if of.HasField("partition_key") else None
            properties = {pair.key: pair.value for pair in of.properties} if of.properties else {}
            return [
                Message(
                    MessageId(topic, ledger, entry, -1, 0, lane), bytes(self._body), key, properties, time,
                    of.event_time or None, of.sequence_id, name, redeliveries, -1, version,
                )
            ]  # fmt: skip
        values, keys = pieces(columns.value), keys_of(columns)
        sequences, times = longs(columns.sequence_id), longs(columns.event_time)
        if NO_SEQUENCE in sequences:
            own = of.sequence_id
            sequences = [own if one == NO_SEQUENCE else one for one in sequences]
        if wanted == (1 << size) - 1 and columns.rows == size and columns.properties is None and not any(times):
            return [
                Message(
                    MessageId(topic, ledger, entry, index, size, lane), value or b"", key, {}, time,
                    None, sequence, name, redeliveries, -1, version,
                )
                for index, (value, key, sequence) in enumerate(zip(values, keys, sequences, strict=True))
            ]  # fmt: skip
        indexes = memoryview(columns.index).cast("B").cast("i").tolist()
        properties_list = properties_of(columns)
        return [
            Message(
                MessageId(topic, ledger, entry, index, size, lane), values[row] or b"", keys[row],
                properties_list[row], time, times[row] or None, sequences[row], name, redeliveries, -1, version,
            )
            for row, index in enumerate(indexes)
            if wanted >> index & 1
        ]  # fmt: skip
