"""The topic record as JSON, with the field names of PIP-468, PIP-475 and PIP-483 and our own.

A record of Pulsar 5.0.0-M1 is read too; our own fields get defaults. Unknown fields are kept, at the top, in segments
and in the operation, so that an older broker does not erase the fields of a newer one. A record of a newer `format` is
refused, because its meaning has changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from anabranch.controller.records.topic_record import FinishedOperation, Operation, Outcome, Phase, TopicRecord
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
    segments = ",".join([_keyed_text(record.segments[one]) for one in sorted(record.segments)])
    data = f'{_text(_before(record))[:-1]},"segments":{{{segments}}},{_text(_after(record))[1:]}'.encode()
    if len(data) > VALUE_BYTES_MAX:
        count = len(record.segments)
        raise RecordTooLarge(f"{count} segments take {len(data)} bytes of metadata, {VALUE_BYTES_MAX} are possible")
    return data


def record_json(record: TopicRecord) -> dict[str, Any]:
    segments = {str(one): segment_json(record.segments[one]) for one in sorted(record.segments)}
    return {**_before(record), "segments": segments, **_after(record)}


def _before(record: TopicRecord) -> dict[str, Any]:
    """What stands before the segments; never empty."""
    return {
        **record.extra,
        "format": FORMAT,
        "epoch": record.layout.epoch,
        "nextSegmentId": record.layout.next_segment_id,
    }


def _after(record: TopicRecord) -> dict[str, Any]:
    """What stands behind them; never empty."""
    optional = {
        "operation": None if record.operation is None else _operation_json(record.operation),
        "lastOperation": None if record.last_operation is None else _finished_json(record.last_operation),
        "autoScalePolicy": None if record.auto_scale_policy is None else dict(record.auto_scale_policy),
        "migratedFrom": record.migrated_from,
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


def _keyed_text(segment: Segment) -> str:
    known: str | None = segment.forms.get(_keyed_text)
    if known is None:
        known = segment.forms[_keyed_text] = f'"{segment.segment_id}":{_text(segment_json(segment))}'
    return known


def segment_json(segment: Segment) -> dict[str, Any]:
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
    if segment.last_position is not None:
        value["lastPosition"] = {"ledgerId": segment.last_position.ledger, "entryId": segment.last_position.entry}
    if segment.legacy_topic_name is not None:
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
    segments = {(number := int(one)): _kept(value, known.get(number)) for one, value in fields.pop("segments").items()}
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
        operation=None if operation is None else _operation(dict(operation)),
        last_operation=None if finished is None else _finished(finished),
        last_split_at_ms=int(fields.pop("lastSplitAtMs", NOT_SEALED)),
        last_merge_at_ms=int(fields.pop("lastMergeAtMs", NOT_SEALED)),
        auto_scale_policy=None if policy is None else dict(policy),
        migrated_from=fields.pop("migratedFrom", None),
        garbage=tuple(_segment(dict(value)) for value in fields.pop("garbage", [])),
        is_deleting=bool(fields.pop("deleting", False)),
        extra=fields,
    )


def _kept(value: dict[str, Any], known: Segment | None) -> Segment:
    if known is not None and known.forms.get(_kept) == value:
        return known
    segment = _segment(dict(value))
    segment.forms[_kept] = value
    return segment


def _segment(fields: dict[str, Any]) -> Segment:
    hash_range, position = fields.pop("hashRange"), fields.pop("lastPosition", None)
    state = SegmentState(fields.pop("state"))
    sealed_epoch, sealed_ms = int(fields.pop("sealedAtEpoch", NOT_SEALED)), int(fields.pop("sealedAtMs", NOT_SEALED))
    if state is SegmentState.ACTIVE:  # PIP-468 writes 0, Pulsar -1
        sealed_epoch = sealed_ms = NOT_SEALED
    return Segment(
        int(fields.pop("segmentId")),
        HashRange(int(hash_range["start"]), int(hash_range["end"])),
        state,
        parent_ids=tuple(sorted(map(int, fields.pop("parentIds", ())))),
        child_ids=tuple(sorted(map(int, fields.pop("childIds", ())))),
        created_at_epoch=int(fields.pop("createdAtEpoch", 0)),
        sealed_at_epoch=sealed_epoch,
        created_at_ms=int(fields.pop("createdAtMs", 0)),
        sealed_at_ms=sealed_ms,
        last_position=None if position is None else Position(int(position["ledgerId"]), int(position["entryId"])),
        legacy_topic_name=fields.pop("legacyTopicName", None),
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


def _operation_json(operation: Operation) -> dict[str, Any]:
    return {
        **operation.extra,
        "id": operation.operation_id,
        "kind": operation.plan.kind.value,
        "parentIds": list(operation.plan.parent_ids),
        "children": [segment_json(child) for child in operation.plan.children],
        "routing": _routing_json(operation.plan.routing),
        "phase": operation.phase.value,
        "startedAtMs": operation.started_at_ms,
        "reason": operation.reason,
    }


def _operation(fields: dict[str, Any]) -> Operation:
    plan = Replacement(
        OperationKind(fields.pop("kind")),
        tuple(map(int, fields.pop("parentIds"))),
        tuple(_segment(dict(child)) for child in fields.pop("children")),
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
