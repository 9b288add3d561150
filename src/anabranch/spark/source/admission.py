"""How much a batch of a stream takes in: limits on rows and bytes, shared out among the segments. Asks brokers for
sums; limits are kept to whole entries, and at least one entry is let in.

| `readAlignment` | each segment is read                                                                            |
|-----------------|-------------------------------------------------------------------------------------------------|
| `backlog`       | in proportion to what it still has: all are done at the same time                               |
| `publishTime`   | up to the same moment: nothing comes late by the watermark only because a segment was behind    |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from anabranch.model.position import Position
from anabranch.protocol.commands import message_id
from anabranch.spark.client.cluster_client import ClusterClient
from anabranch.spark.client.extents import Extent
from anabranch.spark.offsets import advance as cuts
from anabranch.spark.offsets import partitions as plan
from anabranch.spark.offsets.advance import Segment
from anabranch.spark.offsets.offset import Offset
from anabranch.spark.offsets.topic_view import LedgerSum, View
from anabranch.spark.options import Alignment

AHEAD_MS = 24 * 3_600_000  # clocks of publishers may be ahead of ours
ENOUGH = 0.9  # of the limit: no need to look for a better moment

T = TypeVar("T")
Ahead = Mapping[Segment, tuple[Position, Position]]


def admitted(
    cluster: ClusterClient,
    settled: Offset,
    views: Mapping[str, View],
    rows_max: int,
    bytes_max: int,
    alignment: Alignment = Alignment.BACKLOG,
) -> dict[Segment, Position]:
    """How far each segment may be read in this batch; 0 is no limit."""
    ahead = cuts.ahead(settled, views)
    everything = {one: end for one, (_, end) in ahead.items()}
    if not ahead or not (rows_max or bytes_max):
        return everything
    names = {one: plan.backing_of(one[0], one[1], settled[one[0]].marks[one[1]]) for one in ahead}
    found = _asked(cluster, names, ahead, {})
    rows = {one: min(found[one].messages, 1 << 62) for one in ahead}
    limit = rows_max or sum(rows.values())
    if bytes_max:
        per_row = sum(found[one].bytes for one in ahead) / max(sum(rows.values()), 1)
        limit = min(limit, max(int(bytes_max / max(per_row, 1e-9)), 1))
    if sum(rows.values()) <= limit:
        return everything
    if alignment is Alignment.PUBLISH_TIME:
        ends = _aligned(cluster, names, ahead, limit)
    else:
        ends = _shared(cluster, names, ahead, cuts.shares(rows, limit))
    if ends:
        return ends
    longest = max(rows, key=lambda one: (rows[one], one))  # every share is smaller than the next entry
    return {longest: _one_entry(found[longest].ledgers, ahead[longest][0])}


def _asked(
    cluster: ClusterClient, names: Mapping[Segment, str], ahead: Ahead, more: Mapping[Segment, Mapping[str, int]]
) -> dict[Segment, Extent]:
    """What the segments named in `more` (or all, when it is empty) have from where they are read on."""
    wanted = more or {one: {} for one in ahead}
    found = cluster.extents({names[one]: {"start": message_id(ahead[one][0]), **wanted[one]} for one in wanted})
    return {one: found[names[one]] for one in wanted}


def _shared(
    cluster: ClusterClient, names: Mapping[Segment, str], ahead: Ahead, shares: Mapping[Segment, int]
) -> dict[Segment, Position]:
    asked = {one: {"messages_max": share} for one, share in shares.items() if share}
    limited = _asked(cluster, names, ahead, asked)
    ends = {one: min(extent.upto, ahead[one][1]) for one, extent in limited.items()}
    return {one: end for one, end in ends.items() if end > ahead[one][0]}


def _aligned(cluster: ClusterClient, names: Mapping[Segment, str], ahead: Ahead, limit: int) -> dict[Segment, Position]:
    """Every segment up to the latest moment before which all of them together have no more than the limit."""

    def before(moment: int) -> dict[Segment, Extent]:
        return _asked(cluster, names, ahead, {one: {"publish_time": moment} for one in ahead})

    fit, over = latest_fitting(before, _rows, limit, cluster.now_ms())
    ends = _moved(fit or {}, ahead)
    if (
        not ends and over is not None
    ):  # more messages than the limit at the first moment there is: one entry of one of them
        first = min(_moved(over, ahead), default=None)
        if first is not None:
            ends = {first: _one_entry(over[first].ledgers, ahead[first][0])}
    return ends


def latest_fitting(before: Callable[[int], T], size: Callable[[T], int], limit: int, now_ms: int) -> tuple[T, T | None]:
    """The answers for the latest moment (nearly) whose size is within the limit, and for the first one beyond it."""
    high, over = now_ms + AHEAD_MS, None
    step = 1_000
    while True:  # back from now, further each time, to a moment that fits: before all time there is nothing
        low = max(now_ms - step, 0)
        fit = before(low)
        if low == 0 or size(fit) <= limit:
            break
        high, over = low, fit
        step *= 4
    while high - low > 1 and size(fit) < limit * ENOUGH:
        middle = (low + high) // 2
        found = before(middle)
        if size(found) <= limit:
            low, fit = middle, found
        else:
            high, over = middle, found
    return fit, over


def _rows(found: Mapping[Segment, Extent]) -> int:
    return sum(one.messages_to_time for one in found.values())


def _moved(found: Mapping[Segment, Extent], ahead: Ahead) -> dict[Segment, Position]:
    ends = {one: min(extent.at_time, ahead[one][1]) for one, extent in found.items()}
    return {one: end for one, end in ends.items() if end > ahead[one][0]}


def _one_entry(ledgers: Sequence[LedgerSum], begin: Position) -> Position:
    """One past the first entry at or after a position."""
    for ledger in ledgers:
        entry = begin.entry if ledger.ledger == begin.ledger else 0
        if ledger.ledger >= begin.ledger and entry < ledger.entries:
            return Position(ledger.ledger, entry + 1)
    return begin
