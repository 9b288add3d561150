"""Decides which sealed segments can be deleted, and why the others are kept. A pure function.

A sealed segment is deleted when all of these hold:

| condition                                               | why                                                     |
|---------------------------------------------------------|---------------------------------------------------------|
| no operation is running                                 | nothing else raises the epoch meanwhile                 |
| its parents are deleted before it or with it            | a kept segment keeps all its ancestors: order, replay   |
| every registered subscription has drained it            | unread data is never deleted, however old               |
| no subscription is being created, moved or is unknown   | it may read the segment next                            |
| no hold (checkpoint, reader, replication) names it      | its holder may return to it                             |
| it is past the retention time, or over retention's size | oldest first, so that the newest data is what stays     |

Retention is Pulsar's: time t and size s keep what satisfies both, -1 means without limit, 0 keeps nothing that was
consumed. Deletion has two phases: out of the layout in one compare-and-set (`pruned`), then from storage, retried until
confirmed (`swept`). What auto-scaling needs of a deleted segment (merge depth, last split, last merge) is in the
record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from anabranch.controller.records.topic_record import TopicRecord
from anabranch.model.segment import Segment

WEEK_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How much consumed data is kept. -1: no limit."""

    time_ms: int = WEEK_MS
    size_bytes: int = -1


@dataclass(frozen=True, slots=True)
class Progress:
    """One subscription: the sealed segments that it has drained, according to its cursors or its group."""

    drained: frozenset[int]
    is_settled: bool = True  # not being created, moved or deleted


class KeptFor(StrEnum):
    """Why a sealed segment is kept."""

    OPERATION = "operation-running"
    PARENT = "parent-kept"
    SUBSCRIPTION = "subscription-not-through"
    HOLD = "held"
    RETENTION = "retention"


@dataclass(frozen=True, slots=True)
class GcDecision:
    prune: tuple[int, ...]  # ascending; give it to `pruned`
    kept: Mapping[
        int, tuple[KeptFor, str]
    ]  # segment -> reason, and the name of the operation, parent, subscription or holder
    look_again_at_ms: int | None  # when time alone allows a deletion; None: only an event can


def decide(
    record: TopicRecord,
    *,
    now_ms: int,
    retention: Retention,
    subscriptions: Mapping[str, Progress],
    sizes: Mapping[int, int],
    holds: Mapping[str, Iterable[int]],
) -> GcDecision:
    """`sizes`: bytes of segments; a missing one counts as empty. `holds`: holder -> segments that are kept for it."""
    held = {one: holder for holder, ids in sorted(holds.items(), reverse=True) for one in ids}
    remaining = sum(sizes.get(one, 0) for one in record.segments)  # as with a topic's ledgers, active ones count too
    prune: set[int] = set()
    kept: dict[int, tuple[KeptFor, str]] = {}
    look_again: list[int] = []
    sealed_at_ms = _sealed_at_ms(record)
    for one in sorted(sealed_at_ms, key=lambda it: (sealed_at_ms[it], it)):
        segment = record.layout[one]
        reason = _needed(record, segment, prune, subscriptions, held)
        if reason is None:
            due_ms = sealed_at_ms[one] + retention.time_ms if retention.time_ms >= 0 else None
            is_expired = due_ms is not None and now_ms >= due_ms
            is_over_size = 0 <= retention.size_bytes <= remaining
            if is_expired or is_over_size:
                prune.add(one)
                remaining -= sizes.get(one, 0)
                continue
            reason = (KeptFor.RETENTION, "")
            if due_ms is not None:
                look_again.append(due_ms)
        kept[one] = reason
    return GcDecision(tuple(sorted(prune)), kept, min(look_again, default=None))


def _sealed_at_ms(record: TopicRecord) -> dict[int, int]:
    """Seal time of each sealed segment, at least that of its parents, because brokers' clocks may differ."""
    found: dict[int, int] = {}
    for segment in sorted(record.layout.sealed, key=lambda it: it.segment_id):  # parents have lower ids
        found[segment.segment_id] = max([segment.sealed_at_ms, *(found[parent] for parent in segment.parent_ids)])
    return found


def _needed(
    record: TopicRecord,
    segment: Segment,
    prune: set[int],
    subscriptions: Mapping[str, Progress],
    held: Mapping[int, str],
) -> tuple[KeptFor, str] | None:
    """Why the segment is needed, apart from retention."""
    if record.operation is not None:
        return KeptFor.OPERATION, record.operation.operation_id
    stays = [parent for parent in segment.parent_ids if parent not in prune]
    if stays:
        return KeptFor.PARENT, str(stays[0])
    for name, progress in sorted(subscriptions.items()):
        if not progress.is_settled or segment.segment_id not in progress.drained:
            return KeptFor.SUBSCRIPTION, name
    if segment.segment_id in held:
        return KeptFor.HOLD, held[segment.segment_id]
    return None
