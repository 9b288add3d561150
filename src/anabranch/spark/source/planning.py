"""From options to offsets and ranges: the driver's side, where pure decisions meet the brokers' answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.protocol.commands import message_id
from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.client.cluster_client import ClusterClient
from anabranch.spark.offsets import advance as cuts
from anabranch.spark.offsets import offset as offsets
from anabranch.spark.offsets import partitions as plan
from anabranch.spark.offsets.advance import OnLoss, raise_loss
from anabranch.spark.offsets.offset import Cut
from anabranch.spark.offsets.partitions import Range
from anabranch.spark.offsets.topic_view import LedgerSum, View
from anabranch.spark.options import Point, SourceOptions


class NothingAtThatTime(Error):
    """No message at or after the starting time."""

    code = "nothing-at-that-time"


def topics_of(cluster: ClusterClient, options: SourceOptions) -> tuple[str, ...]:
    if options.topics_pattern is None:
        return options.topics
    found = cluster.topics(options.topics_pattern)
    if not found:
        raise BadSparkOption(f"no topic matches {options.topics_pattern!r}")
    return found


def offset_at(cluster: ClusterClient, point: Point, views: Mapping[str, View]) -> dict[str, Cut]:
    """The cut that a starting or ending option names."""
    if point.offset is not None:
        given = offsets.load(point.offset)
        missing = [topic for topic in views if topic not in given]
        if missing:
            raise BadSparkOption(f"the offset given says nothing of {', '.join(missing)}")
        return {topic: _fresh(given[topic]) for topic in views}
    if point.time_ms is not None:
        return {topic: _cut_at_time(cluster, view, point) for topic, view in views.items()}
    make = cuts.earliest if point.word == "earliest" else cuts.latest
    return {topic: make(view) for topic, view in views.items()}


def _fresh(cut: Cut) -> Cut:
    return Cut(cut.uid, {one: replace(mark, base=mark.position) for one, mark in cut.marks.items()})


def at_time(cluster: ClusterClient, view: View, time_ms: int) -> dict[int, Position]:
    """Of every segment the first entry that was published then or later, or its end."""
    names = {one: backing(view, one) for one in view.segments}
    found = cluster.extents({name: {"publish_time": max(time_ms, 0)} for name in names.values()})
    return {one: found[name].at_time for one, name in names.items()}


def _cut_at_time(cluster: ClusterClient, view: View, point: Point) -> Cut:
    positions = at_time(cluster, view, point.time_ms or 0)
    if not point.latest_if_none and all(positions[i] >= one.end for i, one in view.segments.items()):
        raise NothingAtThatTime(f"{view.topic} has nothing published at or after {point.time_ms}")
    return cuts.at(view, positions)


def backing(view: View, segment: int) -> str:
    return plan.backing_of(view.topic, segment, view.segments[segment].opened())


def batch_partitions(cluster: ClusterClient, options: SourceOptions) -> list[tuple[Range, ...]]:
    """What a batch query reads: planned once, so that it sees one state of its topics."""
    can = cluster.capabilities()
    can.check(options.counting())
    views = cluster.views(topics_of(cluster, options))
    starts = offset_at(cluster, options.start, views)
    ends = None if options.end is None else offset_at(cluster, options.end, views)
    on_loss = loss_taken(options)
    found: list[Range] = []
    sums: list[LedgerSum] = []
    for topic, view in views.items():
        start = starts[topic]
        if options.start.offset is not None:
            start = cuts.settled(start, view, on_loss, options.wanted)
        for one in plan.whole(view, start, None if ends is None else ends[topic]):
            segment = view.segments[one.segment]
            if not cuts.is_of_interest(segment, view, options.wanted):
                continue
            one = replace(one, ring_hash=view.ring_hash)
            found += [one] if options.packing.keeps_key_order else plan.by_ledger(one, segment.ledgers)
            sums += segment.ledgers if can.counts_messages else _counted(cluster, options, one)
    return plan.partitions(found, packing_for(options, sums))


def _counted(cluster: ClusterClient, options: SourceOptions, one: Range) -> tuple[LedgerSum, ...]:
    """Ledgers with their messages, which are counted only if asked for."""
    if not (options.records_per_partition_max or options.bytes_per_partition_max):
        return ()
    return cluster.extents({one.backing: {"start": message_id(one.start)}})[one.backing].ledgers


def packing_for(options: SourceOptions, sums: Sequence[LedgerSum]) -> plan.Packing:
    """`maxRecordsPerPartition` and `maxBytesPerPartition` in entries, which is all that a plan can count."""
    entries = sum(one.entries for one in sums)
    limits = (
        (options.records_per_partition_max, sum(one.messages or 0 for one in sums)),
        (options.bytes_per_partition_max, sum(one.bytes for one in sums)),
    )
    packing = options.packing
    for most, total in limits:
        if most and total:
            fit = max(entries * most // total, 1)
            packing = replace(
                packing,
                entries_max=min(packing.entries_max or fit, fit),
                partitions_max=max(packing.partitions_max, -(-total // most)),
            )
    return packing


def loss_taken(options: SourceOptions) -> OnLoss:
    return raise_loss if options.fails_on_loss else (lambda _: None)
