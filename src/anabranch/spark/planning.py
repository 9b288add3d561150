"""From options to offsets and ranges: the driver's side, where pure decisions meet the brokers' answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.protocol.commands import message_id
from anabranch.spark import cuts, offsets, plan
from anabranch.spark.access import BadSparkOption
from anabranch.spark.cluster import Cluster
from anabranch.spark.cuts import OnLoss, Segment, raise_loss
from anabranch.spark.offsets import Cut, Offset
from anabranch.spark.options import Point, SourceOptions
from anabranch.spark.plan import Range
from anabranch.spark.view import LedgerSum, View


class NothingAtThatTime(Error):
    """No message at or after the starting time."""

    code = "nothing-at-that-time"


def topics_of(cluster: Cluster, options: SourceOptions) -> tuple[str, ...]:
    if options.topics_pattern is None:
        return options.topics
    found = cluster.topics(options.topics_pattern)
    if not found:
        raise BadSparkOption(f"no topic matches {options.topics_pattern!r}")
    return found


def offset_at(cluster: Cluster, point: Point, views: Mapping[str, View]) -> dict[str, Cut]:
    """The cut that a starting or ending option names."""
    if point.offset is not None:
        given = offsets.load(point.offset)
        missing = [topic for topic in views if topic not in given]
        if missing:
            raise BadSparkOption(f"the offset given says nothing of {', '.join(missing)}")
        return {topic: _fresh(given[topic]) for topic in views}
    if point.time_ms is not None:
        return {topic: _at_time(cluster, view, point) for topic, view in views.items()}
    make = cuts.earliest if point.word == "earliest" else cuts.latest
    return {topic: make(view) for topic, view in views.items()}


def _fresh(cut: Cut) -> Cut:
    return Cut(cut.uid, {one: replace(mark, base=mark.position) for one, mark in cut.marks.items()})


def _at_time(cluster: Cluster, view: View, point: Point) -> Cut:
    names = {one: backing(view, one) for one in view.segments}
    found = cluster.extents({name: {"publish_time": max(point.time_ms or 0, 0)} for name in names.values()})
    positions = {one: found[name].at_time for one, name in names.items()}
    if not point.latest_if_none and all(positions[i] >= one.end for i, one in view.segments.items()):
        raise NothingAtThatTime(f"{view.topic} has nothing published at or after {point.time_ms}")
    return cuts.at(view, positions)


def backing(view: View, segment: int) -> str:
    return plan.backing_of(view.topic, segment, view.segments[segment].opened())


def batch_partitions(cluster: Cluster, options: SourceOptions) -> list[tuple[Range, ...]]:
    """What a batch query reads: planned once, so that it sees one state of its topics."""
    views = cluster.views(topics_of(cluster, options))
    starts = offset_at(cluster, options.start, views)
    ends = None if options.end is None else offset_at(cluster, options.end, views)
    on_loss = loss_taken(options)
    found: list[Range] = []
    entries, messages = 0, 0
    for topic, view in views.items():
        start = cuts.settled(starts[topic], view, on_loss) if options.start.offset is not None else starts[topic]
        for one in plan.whole(view, start, None if ends is None else ends[topic]):
            ledgers = view.segments[one.segment].ledgers
            found += [one] if options.packing.keeps_key_order else plan.by_ledger(one, ledgers)
            entries += sum(ledger.entries for ledger in ledgers)
            messages += sum(ledger.messages for ledger in ledgers)
    return plan.partitions(found, packing_for(options, entries, messages))


def packing_for(options: SourceOptions, entries: int, messages: int) -> plan.Packing:
    """`maxRecordsPerPartition` in entries, which is all that a plan can count."""
    most = options.records_per_partition_max
    if not most or not messages:
        return options.packing
    wanted = -(-messages // most)
    return replace(
        options.packing,
        entries_max=max(entries * most // messages, 1),
        partitions_max=max(options.packing.partitions_max, wanted),
    )


def loss_taken(options: SourceOptions) -> OnLoss:
    return raise_loss if options.fails_on_loss else (lambda _: None)


def admitted(
    cluster: Cluster, settled: Offset, views: Mapping[str, View], rows_max: int, bytes_max: int
) -> dict[Segment, Position]:
    """How far each segment may be read in this batch. Limits are kept to whole entries; at least one is let in."""
    ahead = cuts.ahead(settled, views)
    if not ahead or not (rows_max or bytes_max):
        return {one: end for one, (_, end) in ahead.items()}
    names = {one: plan.backing_of(one[0], one[1], settled[one[0]].marks[one[1]]) for one in ahead}
    found = cluster.extents({names[one]: {"start": message_id(begin)} for one, (begin, _) in ahead.items()})
    rows = {one: min(found[names[one]].messages, 1 << 62) for one in ahead}
    limit = rows_max or sum(rows.values())
    if bytes_max:
        per_row = sum(found[names[one]].bytes for one in ahead) / max(sum(rows.values()), 1)
        limit = min(limit, max(int(bytes_max / max(per_row, 1e-9)), 1))
    if sum(rows.values()) <= limit:
        return {one: end for one, (_, end) in ahead.items()}
    shares = cuts.shares(rows, limit)
    asked = {
        names[one]: {"start": message_id(ahead[one][0]), "messages_max": shares[one]} for one in ahead if shares[one]
    }
    limited = cluster.extents(asked)
    ends = {one: min(limited[names[one]].upto, ahead[one][1]) for one in ahead if names[one] in limited}
    ends = {one: end for one, end in ends.items() if end > ahead[one][0]}
    if not ends:  # every share is smaller than the next entry: the longest backlog gets one
        longest = max(rows, key=lambda one: (rows[one], one))
        ends = {longest: _one_entry(found[names[longest]].ledgers, ahead[longest][0])}
    return ends


def _one_entry(ledgers: Sequence[LedgerSum], begin: Position) -> Position:
    """One past the first entry at or after a position."""
    for ledger in ledgers:
        entry = begin.entry if ledger.ledger == begin.ledger else 0
        if ledger.ledger >= begin.ledger and entry < ledger.entries:
            return Position(ledger.ledger, entry + 1)
    return begin
