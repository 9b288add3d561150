"""A read task: its ranges, one after the other, as Arrow record batches. Runs in executors."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from anabranch.client.errors import DecryptionFailed
from anabranch.model.errors import Error
from anabranch.protocol.errors import BadEntry
from anabranch.spark.client.cluster_client import ClusterClient, cluster_of
from anabranch.spark.client.entry_fetcher import Fetch, Stored
from anabranch.spark.offsets.advance import LostData
from anabranch.spark.offsets.partitions import Range
from anabranch.spark.options import SourceOptions
from anabranch.spark.source.arrow_rows import decode, record_batch
from anabranch.spark.source.decryption import EntryDecryption
from anabranch.spark.source.value_decoder import ValueReader

_frozen = False


class UnreadableEntry(Error):
    """An entry that cannot become rows: damaged, encrypted, or a piece of a larger message."""

    code = "unreadable-entry"


@dataclass(frozen=True, slots=True)
class Task:
    """What travels to an executor."""

    options: SourceOptions
    schema: pa.Schema
    values: ValueReader | None = None


def read(task: Task, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    _freeze()
    cluster = cluster_of(task.options.access)
    keys = task.options.decryption
    decryption = None if keys is None else EntryDecryption(keys, cluster)
    for one in ranges:
        yield from _read_range(task, cluster, one, decryption)


def _read_range(
    task: Task, cluster: ClusterClient, one: Range, decryption: EntryDecryption | None
) -> Iterator[pa.RecordBatch]:
    options = task.options
    if not options.fails_on_loss:
        first = cluster.extents({one.backing: {}})[one.backing].first
        if first >= one.end:
            return
    fetch = Fetch(
        cluster,
        one,
        prefetch_bytes=options.prefetch_bytes,
        retries=options.fetch_retries,
        backoff_ms=options.fetch_backoff_ms,
        fails_on_holes=options.fails_on_loss,
        prefix=options.reader_prefix,
    )
    pending: list[Stored] = []
    size = 0
    is_checked = False
    for found in fetch:
        if not is_checked:
            _check_beginning(task, cluster, one, fetch)
            is_checked = True
        _check_crossings(task, cluster, one, fetch)
        for entry in found:
            pending.append(entry)
            size += len(entry.payload)
            if size >= options.batch_bytes:
                yield from _rows(task, one, fetch, pending, decryption)
                pending, size = [], 0
        if pending:
            yield from _rows(task, one, fetch, pending, decryption)
            pending, size = [], 0
    _check_crossings(task, cluster, one, fetch)


def _rows(
    task: Task, one: Range, fetch: Fetch, stored: list[Stored], decryption: EntryDecryption | None
) -> Iterator[pa.RecordBatch]:
    entries, skipped = stored, 0
    try:
        if decryption is not None:
            entries, skipped = decryption.opened(stored)
        found = decode(entries)
    except (BadEntry, DecryptionFailed) as cause:
        where = f"{stored[0].position} to {stored[-1].position}"
        raise UnreadableEntry(f"{one.backing}: an entry from {where} cannot be read: {cause.reason}") from cause
    if found.chunked:
        at = entries[found.chunked[0]].position
        raise UnreadableEntry(f"{one.backing}: {at} is a piece of a chunked message, which this source cannot join")
    messages = sum(max(size, 1) for size in found.batch_sizes)
    fetch.used(messages + skipped, sum(len(entry.payload) for entry in stored))
    if not len(found):
        return
    if task.values is None:
        batch = record_batch(found, entries, one.topic, one.segment, task.schema)
    else:
        batch = task.values.record_batch(found, entries, one.topic, one.segment, task.schema)
    wanted = task.options.wanted
    if not wanted.is_all:
        batch = batch.filter(wanted.mask(found.arrow("key_bytes"), one.ring_hash))
    rows_max = task.options.batch_rows
    for start in range(0, batch.num_rows, rows_max):
        yield batch.slice(start, rows_max)


def _check_beginning(task: Task, cluster: ClusterClient, one: Range, fetch: Fetch) -> None:
    """A first entry of a later ledger than asked for: the ledger ended there, or retention took the rest of it."""
    if fetch.began_late is None or fetch.crossed or not task.options.fails_on_loss:
        return
    extent = cluster.extents({one.backing: {}})[one.backing]
    if one.start <= extent.trimmed_to:
        raise LostData(one.topic, one.segment, one.start, fetch.began_late)


def _check_crossings(task: Task, cluster: ClusterClient, one: Range, fetch: Fetch) -> None:
    """Apache Pulsar goes on with the next ledger when one is deleted under a reader."""
    crossed, fetch.crossed = fetch.crossed, []
    if not crossed or not task.options.fails_on_loss:
        return
    extent = cluster.extents({one.backing: {}})[one.backing]
    for wanted, found in crossed:
        if wanted <= extent.trimmed_to:
            raise LostData(one.topic, one.segment, wanted, found, is_certain=False)


def _freeze() -> None:
    """Spark collects garbage after every task: what is loaded by now never becomes any."""
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()
