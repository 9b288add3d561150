"""Cache of decoded topic records: a record is decoded once, and one that was written here is not decoded at all.

A split writes the record twice, and watches, segment owners and opening producers of the broker then read it. Most
segments are unchanged; their objects are reused, with their cached encodings (`Segment.forms`). The cache maps bytes to
values; whether the bytes are in the store is known only from the store. Never awaits.
"""

from __future__ import annotations

from collections import OrderedDict

from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.records.topic_record_codec import decode_record, encode_record

BYTES_MAX = 16 * 1024 * 1024


class RecordCache:
    """The last record of each key, limited to `bytes_max` encoded bytes in total."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._known: OrderedDict[str, tuple[bytes, TopicRecord]] = OrderedDict()
        self._bytes = 0

    def encode(self, key: str, record: TopicRecord) -> bytes:
        """Raises RecordTooLarge."""
        data = encode_record(record)
        self._remember(key, data, record)
        return data

    def decode(self, key: str, data: bytes) -> TopicRecord:
        """Raises BadTopicRecord."""
        known = self._known.get(key)
        if known is not None and known[0] == data:
            self._known.move_to_end(key)
            return known[1]
        record = decode_record(data, None if known is None else known[1])
        self._remember(key, data, record)
        return record

    def last(self, key: str) -> TopicRecord | None:
        """The record that was encoded or decoded last. An encoded one may never have reached the store."""
        known = self._known.get(key)
        return None if known is None else known[1]

    def forget(self, key: str) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._bytes -= len(known[0])

    def _remember(self, key: str, data: bytes, record: TopicRecord) -> None:
        self.forget(key)
        self._known[key] = data, record
        self._bytes += len(data)
        while self._bytes > self._bytes_max and len(self._known) > 1:
            self.forget(next(iter(self._known)))
