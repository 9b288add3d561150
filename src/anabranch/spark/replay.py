"""Is a replay the same as the first time? What a task is about to leave out is compared with what is stored.

A task that finds rows of its name persisted leaves out what has their sequence ids. That is right only if it brings the
same rows again; so the stored ones are read back (the last ones of the segment, as many as `LOOKED_AT`) and compared.
Knows entries and rows; runs only when something was persisted before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.spark.cluster import Cluster
from anabranch.spark.fetch import Fetch
from anabranch.spark.plan import Range
from anabranch.spark.rows import decode

LOOKED_AT = 2_000  # entries


class NonDeterministicReplay(Error):
    """A batch that runs again has brought other rows than the first time, so nobody can say what is stored and what is
    not."""

    code = "non-deterministic-replay"

    def __init__(self, topic: str, sequence_id: int) -> None:
        super().__init__(
            f"{topic}: row {sequence_id & 0xFFFF_FFFF} of the task is not the row that was stored under its number "
            "when the batch ran before. Make the order of rows certain (option sortBy, no changed number of "
            "partitions), or choose delivery=at-least-once"
        )
        self.topic, self.sequence_id = topic, sequence_id


Stored = dict[int, tuple[object, object]]
"""Sequence id to key and value."""


def stored_rows(cluster: Cluster, backing: str, producer_name: str) -> Stored:
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
            raise NonDeterministicReplay(topic, first + row)


def _plain(key: str | bytes | None) -> bytes | None:
    return key.encode() if isinstance(key, str) else key
