"""The topic record as JSON, with the field names of PIP-468, PIP-475 and PIP-483 and our own.

A migration connects each of N partitions with each of N children. These edges stand once in the record
(`migratedEdges`), and the segments concerned omit `parentIds`, `childIds`, and the name of the partition.

A record of Pulsar 5.0.0-M1 is read too; our own fields get defaults. Unknown fields are kept, at the top, in segments
and in the operation, so that an older broker does not erase the fields of a newer one. A record of a newer `format` is
refused, because its meaning has changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.controller.records.topic_record import (
    FinishedOperation,
    MigratedFrom,
    Operation,
    Outcome,
    Phase,
    TopicRecord,
)
from anabranch.metadata.interface import VALUE_BYTES_MAX
from anabranch.model.errors import Error
from anabranch.model.hashrange import BadRange, HashRange
from anabranch.model.layout import Layout
from anabranch.model.partition_hash import PartitionHash
from anabranch.model.position import Position
from anabranch.model.replacement import OperationKind, Replacement
from anabranch.model.routing import MOD_N, RANGE_LOW16, RingHash, Routing, RoutingKind
from anabranch.model.segment import NOT_SEALED, BadLayout, Segment, SegmentState

FORMAT = 1

_DERIVED = {"sealed", "active", "root", "leaf", "legacy"}  # Pulsar's serializer writes them; they say nothing new


class BadTopicRecord(Error):
    """A topic record that this version cannot read."""

    code = "bad-topic-record"


class RecordTooLarge(Error):
    """The topic has more segments, sealed ones included, than one metadata value can hold."""

    code = "record-too-large"


def encode_record(record: TopicRecord) -> bytes:
    """The text of `record_json`; of segments that were encoded before, theirs is taken as it is."""
    edges = migrated_edges(record)
    segments = ",".join([_keyed_text(record.segments[one], edges) for one in sorted(record.segments)])
    data = f'{_text(_before(record))[:-1]},"segments":{{{segments}}},{_text(_after(record))[1:]}'.encode()
    if len(data) > VALUE_BYTES_MAX:
        count = len(record.segments)
        raise RecordTooLarge(f"{count} segments take {len(data)} bytes of metadata, {VALUE_BYTES_MAX} are possible")
    return data


def record_json(record: TopicRecord) -> dict[str, Any]:
    """With the edges of a migration spelled out, for people and other programs."""
    segments = {str(one): segment_json(record.segments[one]) for one in sorted(record.segments)}
    return {**_before(record), "segments": segments, **_after(record, is_compact=False)}


def _before(record: TopicRecord) -> dict[str, Any]:
    """What stands before the segments; never empty."""
    return {
        **record.extra,
        "format": FORMAT,
        "epoch": record.layout.epoch,
        "nextSegmentId": record.layout.next_segment_id,
    }


def _after(record: TopicRecord, *, is_compact: bool = True) -> dict[str, Any]:
    """What stands behind them; never empty."""
    edges = migrated_edges(record) if is_compact else None
    optional = {
        "migratedEdges": None if edges is None else {"parentIds": edges.parent_ids, "childIds": edges.child_ids},
        "operation": None if record.operation is None else _operation_json(record.operation, edges),
        "lastOperation": None if record.last_operation is None else _finished_json(record.last_operation),
        "autoScalePolicy": None if record.auto_scale_policy is None else dict(record.auto_scale_policy),
        "migratedFrom": None if record.migrated_from is None else _origin_json(record.migrated_from),
        "deleting": record.is_deleting or None,
    }
    return {
        "properties": dict(record.properties),
        "incarnation": record.incarnation,
        "routing": _routing_json(record.layout.routing),
        "leaderTerm": record.leader_term,
        "lastSplitAtMs": record.last_split_at_ms,
        "lastMergeAtMs": record.last_merge_at_ms,
        "garbage": [segment_json(segment) for segment in record.garbage],
        **{name: value for name, value in optional.items() if value is not None},
    }


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class MigratedEdges:
    """All parents and children of a topic's migration that still exist, and the regular topic that it was."""

    parent_ids: tuple[int, ...]
    child_ids: tuple[int, ...]
    origin: MigratedFrom | None

    def legacy_name(self, segment_id: int) -> str | None:
        return None if self.origin is None or segment_id >= self.origin.count else self.origin.segment_topic(segment_id)


def migrated_edges(record: TopicRecord) -> MigratedEdges | None:
    """None: the topic was not migrated, or its partitions are garbage collected."""
    if record.migrated_from is None:
        return None
    running = record.operation
    if running is not None and running.plan.kind is OperationKind.MIGRATION:
        return MigratedEdges(running.plan.parent_ids, running.plan.child_ids, record.migrated_from)
    for segment in record.segments.values():
        if segment.legacy_topic_name is not None and segment.child_ids:
            parent_ids = record.segments[segment.child_ids[0]].parent_ids
            return MigratedEdges(parent_ids, segment.child_ids, record.migrated_from)
    return None


def _keyed_text(segment: Segment, edges: MigratedEdges | None) -> str:
    known: tuple[MigratedEdges | None, str] | None = segment.forms.get(_keyed_text)
    if known is None or (known[0] is not edges and known[0] != edges):
        text = f'"{segment.segment_id}":{_text(segment_json(segment, edges))}'
        known = segment.forms[_keyed_text] = edges, text
    return known[1]


def segment_json(segment: Segment, edges: MigratedEdges | None = None) -> dict[str, Any]:
    """With `edges`, what follows from them is omitted."""
    value: dict[str, Any] = {
        **segment.extra,
        "segmentId": segment.segment_id,
        "hashRange": {"start": segment.hash_range.start, "end": segment.hash_range.end},
        "state": segment.state.value,
        "parentIds": list(segment.parent_ids),
        "childIds": list(segment.child_ids),
        "createdAtEpoch": segment.created_at_epoch,
        "sealedAtEpoch": segment.sealed_at_epoch,
        "createdAtMs": segment.created_at_ms,
        "sealedAtMs": segment.sealed_at_ms,
        "mergeDepth": segment.merge_depth,
    }
    if edges is not None:
        if segment.child_ids and segment.child_ids == edges.child_ids:
            del value["childIds"]
        if segment.parent_ids and segment.parent_ids == edges.parent_ids:
            del value["parentIds"]
    if segment.last_position is not None:
        value["lastPosition"] = {"ledgerId": segment.last_position.ledger, "entryId": segment.last_position.entry}
    if segment.legacy_topic_name is not None and (
        edges is None or edges.legacy_name(segment.segment_id) != segment.legacy_topic_name
    ):
        value["legacyTopicName"] = segment.legacy_topic_name
    if segment.entry_bucket_splits:
        value["entryBucketSplits"] = list(segment.entry_bucket_splits)
    return value


def decode_record(data: bytes, known: TopicRecord | None = None) -> TopicRecord:
    """The record, its layout checked. BadTopicRecord when it is none, or of a newer format. Segments that say the same
    as those of a record that was decoded before are taken from there."""
    try:
        fields = dict(json.loads(data))
        number = fields.pop("format", FORMAT)
        if number != FORMAT:
            raise BadTopicRecord(f"topic record of format {number}, this version reads {FORMAT}")
        record = _record(fields, {} if known is None else known.segments)
        record.layout.check()
    except BadTopicRecord:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, BadRange, BadLayout) as error:
        raise BadTopicRecord(f"not a topic record: {type(error).__name__}: {error}") from error
    return record


def _record(fields: dict[str, Any], known: Mapping[int, Segment]) -> TopicRecord:
    origin = _origin(fields.pop("migratedFrom", None))
    edges = _edges(fields.pop("migratedEdges", None), origin)
    segments = {
        (number := int(one)): _kept(value, known.get(number), edges) for one, value in fields.pop("segments").items()
    }
    operation, finished = fields.pop("operation", None), fields.pop("lastOperation", None)
    policy = fields.pop("autoScalePolicy", None)
    return TopicRecord(
        Layout(
            int(fields.pop("epoch")),
            int(fields.pop("nextSegmentId")),
            segments,
            _routing(fields.pop("routing", None), segments),
        ),
        incarnation=int(fields.pop("incarnation", 0)),
        properties={str(name): str(value) for name, value in fields.pop("properties", {}).items()},
        leader_term=int(fields.pop("leaderTerm", 0)),
        operation=None if operation is None else _operation(dict(operation), edges),
        last_operation=None if finished is None else _finished(finished),
        last_split_at_ms=int(fields.pop("lastSplitAtMs", NOT_SEALED)),
        last_merge_at_ms=int(fields.pop("lastMergeAtMs", NOT_SEALED)),
        auto_scale_policy=None if policy is None else dict(policy),
        migrated_from=origin,
        garbage=tuple(_segment(dict(value)) for value in fields.pop("garbage", [])),
        is_deleting=bool(fields.pop("deleting", False)),
        extra=fields,
    )


def _kept(value: dict[str, Any], known: Segment | None, edges: MigratedEdges | None) -> Segment:
    if known is not None and known.forms.get(_kept) == (value, edges):
        return known
    segment = _segment(dict(value), edges)
    segment.forms[_kept] = value, edges
    return segment


def _edges(value: Mapping[str, Any] | None, origin: MigratedFrom | None) -> MigratedEdges | None:
    if value is None:
        return None
    parent_ids, child_ids = (tuple(sorted(map(int, value[name]))) for name in ("parentIds", "childIds"))
    return MigratedEdges(parent_ids, child_ids, origin)


def _origin_json(origin: MigratedFrom) -> dict[str, Any]:
    return {**origin.extra, "topic": origin.topic, "partitions": origin.partitions, "atMs": origin.at_ms}


def _origin(value: Mapping[str, Any] | None) -> MigratedFrom | None:
    if value is None:
        return None
    fields = dict(value)
    return MigratedFrom(
        str(fields.pop("topic")), int(fields.pop("partitions", 0)), int(fields.pop("atMs", 0)), extra=fields
    )


def _ids(value: list[Any] | None, default: tuple[int, ...]) -> tuple[int, ...]:
    return default if value is None else tuple(sorted(map(int, value)))


def _segment(fields: dict[str, Any], edges: MigratedEdges | None = None) -> Segment:
    one, legacy_topic_name = int(fields.pop("segmentId")), fields.pop("legacyTopicName", None)
    parent_ids: tuple[int, ...] = ()
    child_ids: tuple[int, ...] = ()
    if edges is not None:
        if edges.child_ids[0] <= one <= edges.child_ids[-1]:
            parent_ids = edges.parent_ids
        elif edges.parent_ids[0] <= one <= edges.parent_ids[-1] and fields["state"] == SegmentState.SEALED:
            child_ids = edges.child_ids
        legacy_topic_name = legacy_topic_name or edges.legacy_name(one)
    hash_range, position = fields.pop("hashRange"), fields.pop("lastPosition", None)
    state = SegmentState(fields.pop("state"))
    sealed_epoch, sealed_ms = int(fields.pop("sealedAtEpoch", NOT_SEALED)), int(fields.pop("sealedAtMs", NOT_SEALED))
    if state is SegmentState.ACTIVE:  # PIP-468 writes 0, Pulsar -1
        sealed_epoch = sealed_ms = NOT_SEALED
    return Segment(
        one,
        HashRange(int(hash_range["start"]), int(hash_range["end"])),
        state,
        parent_ids=_ids(fields.pop("parentIds", None), parent_ids),
        child_ids=_ids(fields.pop("childIds", None), child_ids),
        created_at_epoch=int(fields.pop("createdAtEpoch", 0)),
        sealed_at_epoch=sealed_epoch,
        created_at_ms=int(fields.pop("createdAtMs", 0)),
        sealed_at_ms=sealed_ms,
        last_position=None if position is None else Position(int(position["ledgerId"]), int(position["entryId"])),
        legacy_topic_name=legacy_topic_name,
        entry_bucket_splits=tuple(map(int, fields.pop("entryBucketSplits", ()))),
        merge_depth=int(fields.pop("mergeDepth", 0)),
        extra={name: value for name, value in fields.items() if name not in _DERIVED},
    )


def _routing_json(routing: Routing) -> dict[str, str]:
    """The partition hash of a migrated topic is that of its first segments, which were partitions."""
    value = {"kind": routing.kind.value}
    if routing.kind is RoutingKind.RANGE:
        value["ringHash"] = routing.ring_hash.value
    if routing.partition_hash is not PartitionHash.MURMUR3:
        value["partitionHash"] = routing.partition_hash.value
    return value


def _routing(value: Mapping[str, Any] | None, segments: Mapping[int, Segment]) -> Routing:
    if value is not None:
        return Routing(
            RoutingKind(value["kind"]),
            RingHash(value.get("ringHash", RingHash.LOW16)),
            PartitionHash(value.get("partitionHash", PartitionHash.MURMUR3)),
        )
    # Pulsar's clients infer it just so: partitions of a regular topic and nothing else are chosen by modulo
    is_synthetic = all(segment.legacy_topic_name is not None for segment in segments.values() if segment.is_active)
    return MOD_N if is_synthetic else RANGE_LOW16


def _operation_json(operation: Operation, edges: MigratedEdges | None) -> dict[str, Any]:
    return {
        **operation.extra,
        "id": operation.operation_id,
        "kind": operation.plan.kind.value,
        "parentIds": list(operation.plan.parent_ids),
        "children": [segment_json(child, edges) for child in operation.plan.children],
        "routing": _routing_json(operation.plan.routing),
        "phase": operation.phase.value,
        "startedAtMs": operation.started_at_ms,
        "reason": operation.reason,
    }


def _operation(fields: dict[str, Any], edges: MigratedEdges | None) -> Operation:
    plan = Replacement(
        OperationKind(fields.pop("kind")),
        tuple(map(int, fields.pop("parentIds"))),
        tuple(_segment(dict(child), edges) for child in fields.pop("children")),
        _routing(fields.pop("routing"), {}),
    )
    return Operation(
        str(fields.pop("id")),
        plan,
        Phase(fields.pop("phase")),
        int(fields.pop("startedAtMs")),
        str(fields.pop("reason", "")),
        extra=fields,
    )


def _finished_json(finished: FinishedOperation) -> dict[str, Any]:
    return {
        "id": finished.operation_id,
        "kind": finished.kind.value,
        "outcome": finished.outcome.value,
        "epoch": finished.epoch,
        "finishedAtMs": finished.finished_at_ms,
        "reason": finished.reason,
    }


def _finished(value: Mapping[str, Any]) -> FinishedOperation:
    return FinishedOperation(
        str(value["id"]),
        OperationKind(value["kind"]),
        Outcome(value["outcome"]),
        int(value["epoch"]),
        int(value["finishedAtMs"]),
        str(value.get("reason", "")),
    )
