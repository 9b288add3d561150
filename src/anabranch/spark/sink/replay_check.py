"""Is a replay the same as the first time? What a task leaves out is compared with what is stored.

A task that finds rows of its name persisted leaves out what has their sequence ids. That is right only if it brings
the same rows again. Brokers keep a checksum of them (`anabranch.spark.sink.row_checksum`), for the segment and for
those before it: the task makes its own of what it leaves out (`Memory`). Where there is none (another broker, rows of
an older version) the stored rows are read back, the last ones of the segment, as many as `LOOKED_AT`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.spark.client.cluster_client import ClusterClient
from anabranch.spark.client.entry_fetcher import Fetch
from anabranch.spark.offsets.partitions import Range
from anabranch.spark.sink.row_checksum import RowChecksum
from anabranch.spark.source.arrow_rows import decode

LOOKED_AT = 2_000  # entries


class NonDeterministicReplay(Error):
    """A batch that runs again has brought other rows than the first time, so it is unknown what is stored and what is
    not."""

    code = "non-deterministic-replay"

    def __init__(self, topic: str, what: str) -> None:
        super().__init__(
            f"{topic}: {what} when the batch ran before. Make the order of rows certain (option sortBy, no changed "
            "number of partitions), or choose delivery=at-least-once"
        )
        self.topic = topic


@dataclass(slots=True)
class Brought:
    """What one segment has of the task from before, and how much of it came again."""

    last: int  # sequence id
    stored: RowChecksum
    again: RowChecksum


class Memory:
    """What earlier attempts of a task have stored, segment by segment. Rows are shown to it in the order of their
    numbers; a segment is judged once everything came that it has."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._open: dict[int, Brought] = {}
        self._known: set[int] = set()

    def knows(self, segment: int) -> bool:
        return segment in self._known

    def own(self, segment: int) -> None:
        """This attempt writes to the segment: rows stored from now on belong to it."""
        self._known.add(segment)

    def expect(self, segment: int, last: int, stored: RowChecksum) -> None:
        self._known.add(segment)
        self._open[segment] = Brought(last, stored, RowChecksum(stored.first))

    def bring(self, segment: int, first: int, rows: Any, values: Any, keys: Any) -> None:
        """These rows are left out, because the segment has them."""
        one = self._open.get(segment)
        if one is not None:
            one.again = one.again.with_rows(first, rows[first + rows <= one.last], values, keys)

    def judge(self, upto: int | None) -> None:
        """Rows up to this sequence id were shown (None: all there are); NonDeterministicReplay when they are others."""
        for segment, one in list(self._open.items()):
            if upto is None or upto >= one.last:
                del self._open[segment]
                if one.again != one.stored:
                    raise NonDeterministicReplay(
                        self._topic,
                        f"the {one.again.rows:,} rows that the task brings again for segment {segment} are not the "
                        f"{one.stored.rows:,} that were stored there",
                    )


Stored = dict[int, tuple[object, object]]
"""Sequence id to key and value."""


def stored_rows(cluster: ClusterClient, backing: str, producer_name: str) -> Stored:
    """The last rows of this producer in one segment, as far back as is looked."""
    extent = cluster.extents({backing: {}})[backing]
    start = max(extent.first, Position(extent.end.ledger, max(extent.end.entry - LOOKED_AT, 0)))
    if start >= extent.end:
        return {}
    one = Range(backing, 0, start, extent.end, backing)
    fetch = Fetch(cluster, one, prefetch_bytes=4 << 20, retries=3, backoff_ms=100, fails_on_holes=False)
    found: Stored = {}
    for entries in fetch:
        run = decode(entries)
        fetch.used(sum(max(size, 1) for size in run.batch_sizes), sum(len(entry.payload) for entry in entries))
        names, numbers = run.producer_names, run.entries()
        if producer_name not in names:
            continue
        keys, values, sequences = run.keys(), run.values(), run.message_sequence_ids()
        for row, number in enumerate(numbers):
            if names[number] == producer_name:
                found[sequences[row]] = (_plain(keys[row]), values[row])
    return found


def check(topic: str, stored: Stored, first: int, left_out: Iterable[int], keys: Any, values: Any) -> None:
    """`left_out` are numbers of rows; those that are not among the stored ones looked at are believed."""
    for row in left_out:
        known = stored.get(first + row)
        if known is None:
            continue
        key = None if keys is None else _plain(keys[row].as_py())
        value = values[row].as_py()
        if known != (key, value.encode() if isinstance(value, str) else value):
            raise NonDeterministicReplay(
                topic, f"row {first + row & 0xFFFF_FFFF} of the task is not the row that was stored under its number"
            )


def _plain(key: str | bytes | None) -> bytes | None:
    return key.encode() if isinstance(key, str) else key
