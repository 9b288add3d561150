"""The topic record: the durable state of one scalable topic, one compare-and-set unit. Values and pure edits.

Each edit takes a record and returns the next one, or raises. While an `operation` is set, only its own steps raise the
epoch, so a leader that resumes it finds the layout on which it was planned.

    idle ── planned() ──▶ operation CREATE ── sealing() ──▶ operation SEAL ── committed() ──▶ idle, epoch + 1
                                 └── aborted() ──▶ idle, same epoch, planned children in `garbage`

`garbage` lists segments that no longer belong to the topic and whose storage may still exist. Their deletion is retried
until storage confirms, then they are `swept`. So the deletion of an aborted plan or pruned segment may be late, but
storage never leaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from anabranch.model.errors import Busy, Error
from anabranch.model.layout import Layout
from anabranch.model.replacement import OperationKind, Replacement, plan_migration, replaced, reserved
from anabranch.model.routing import Routing, RoutingKind
from anabranch.model.segment import NOT_SEALED, Seal, Segment


class StaleTerm(Error):
    """Another broker leads the topic: this leader may not write any more."""

    code = "stale-term"


class OperationRunning(Busy):
    """A split, merge or migration of this topic is running; only one runs at a time."""

    code = "operation-running"

    def __init__(self, operation: Operation) -> None:
        super().__init__(
            f"{operation.plan.kind.lower()} of {list(operation.plan.parent_ids)} is running (phase {operation.phase})"
        )
        self.operation = operation


class NoSuchOperation(Error):
    """The operation is not running: it was finished or aborted, perhaps by another leader."""

    code = "no-such-operation"


class Phase(StrEnum):
    """Phase of a running operation. The record has CREATE and SEAL; the others appear only in status."""

    PLAN = "PLAN"  # not yet in the record
    CREATE = "CREATE"  # ids reserved; children and their cursors are being created. Can still be aborted
    SEAL = "SEAL"  # a parent may be sealed: roll forward only
    COMMIT = "COMMIT"  # all parents sealed, the record is being written
    TELL = "TELL"  # in the record: the layout has changed


class Outcome(StrEnum):
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class Operation:
    """The intent of a structural change, written before anything is touched."""

    operation_id: str
    plan: Replacement
    phase: Phase
    started_at_ms: int
    reason: str = ""  # why it was started
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FinishedOperation:
    """The last operation and its outcome, for a caller whose answer was lost."""

    operation_id: str
    kind: OperationKind
    outcome: Outcome
    epoch: int  # of the layout after it
    finished_at_ms: int
    reason: str = ""  # why it was started, or why it was aborted


@dataclass(frozen=True, slots=True)
class MigratedFrom:
    """The regular topic that a scalable topic was before its migration. `partitions` 0: it was not partitioned."""

    topic: str
    partitions: int
    at_ms: int
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of its topics, which the scalable topic's first segments wrap."""
        return max(1, self.partitions)

    @property
    def segment_topics(self) -> list[str]:
        return [self.segment_topic(index) for index in range(self.count)]

    def segment_topic(self, index: int) -> str:
        return f"{self.topic}-partition-{index}" if self.partitions else self.topic


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """How an administrator wants a migration, for the leader that finishes it."""

    force: bool = False  # clients that cannot follow are closed
    kinds: Mapping[str, str] = field(default_factory=dict)  # subscription -> its kind, if not that of its consumers

    def to_json(self) -> dict[str, object]:
        return {"force": self.force, "kinds": dict(self.kinds)}

    @classmethod
    def of(cls, operation: Operation) -> MigrationOptions:
        kinds = operation.extra.get("kinds")
        found = {str(name): str(kind) for name, kind in kinds.items()} if isinstance(kinds, Mapping) else {}
        return cls(bool(operation.extra.get("force")), found)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    layout: Layout
    incarnation: int = 0  # another number after the topic was deleted and created again
    properties: Mapping[str, str] = field(default_factory=dict)
    leader_term: int = 0
    operation: Operation | None = None
    last_operation: FinishedOperation | None = None
    last_split_at_ms: int = NOT_SEALED  # -1: never. Cooldowns of auto-scaling start here
    last_merge_at_ms: int = NOT_SEALED
    auto_scale_policy: Mapping[str, object] | None = None
    migrated_from: MigratedFrom | None = None  # the regular topic that it was
    garbage: tuple[Segment, ...] = ()  # by id
    is_deleting: bool = False  # only the deletion continues
    extra: Mapping[str, object] = field(default_factory=dict)  # unknown fields of a newer version, kept unchanged

    @property
    def epoch(self) -> int:
        return self.layout.epoch

    @property
    def segments(self) -> Mapping[int, Segment]:
        return self.layout.segments

    @property
    def is_migrating(self) -> bool:
        """Its migration is not committed: it may still be undone, and clients do not see it."""
        return self.operation is not None and self.operation.plan.kind is OperationKind.MIGRATION

    @property
    def planned_children(self) -> tuple[Segment, ...]:
        """Segments that are not in the layout yet, but may exist and have cursors."""
        return () if self.operation is None else self.operation.plan.children

    def running(self, operation_id: str) -> Operation:
        """The running operation, if it is this one."""
        if self.operation is None or self.operation.operation_id != operation_id:
            raise NoSuchOperation(f"operation {operation_id} is not running")
        return self.operation

    def outcome(self, operation_id: str) -> Outcome | None:
        """Outcome of the last operation; None while it runs, or if another one ran after it."""
        last = self.last_operation
        return last.outcome if last is not None and last.operation_id == operation_id else None


def with_term(record: TopicRecord, term: int) -> TopicRecord:
    """Sets the leader term; writers of lower terms are refused from then on."""
    if term < record.leader_term:
        raise StaleTerm(f"term {term} is over: the leader of term {record.leader_term} has written the topic record")
    return replace(record, leader_term=term)


def planned(record: TopicRecord, operation_id: str, plan: Replacement, *, now_ms: int, reason: str = "") -> TopicRecord:
    """PLAN: sets the operation and reserves its segment ids."""
    if record.operation is not None:
        raise OperationRunning(record.operation)
    operation = Operation(operation_id, plan, Phase.CREATE, now_ms, reason)
    return replace(record, layout=reserved(record.layout, plan), operation=operation)


def migration_planned(
    origin: MigratedFrom,
    operation_id: str,
    *,
    incarnation: int,
    epoch: int,
    routing: Routing,
    options: MigrationOptions,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> TopicRecord:
    """PLAN of a migration: the first record of the scalable topic. Its layout is that of the regular topic, with the
    `epoch` that layout sessions have seen."""
    layout = Layout.synthetic(origin.segment_topics, now_ms=origin.at_ms, routing=routing, epoch=epoch)
    children = Routing(RoutingKind.RANGE, partition_hash=routing.partition_hash)
    plan = plan_migration(layout, now_ms=origin.at_ms, routing=children)
    record = TopicRecord(layout, incarnation, properties=dict(properties), migrated_from=origin)
    record = planned(record, operation_id, plan, now_ms=origin.at_ms, reason="migration of a regular topic")
    assert record.operation is not None
    return replace(record, operation=replace(record.operation, extra=options.to_json()))


def undoing(record: TopicRecord, operation_id: str, reason: str) -> TopicRecord:
    """A migration is undone: the partitions are released, then the record is removed. No partition is sealed, and none
    will be."""
    operation = record.running(operation_id)
    return replace(record, operation=replace(operation, reason=reason), is_deleting=True)


def sealing(record: TopicRecord, operation_id: str) -> TopicRecord:
    """SEAL: from here on a parent may be sealed, which is the point of no return."""
    return replace(record, operation=replace(record.running(operation_id), phase=Phase.SEAL))


def committed(record: TopicRecord, operation_id: str, seals: Mapping[int, Seal], *, now_ms: int) -> TopicRecord:
    """COMMIT: parents SEALED, children ACTIVE, epoch + 1, operation cleared, cooldowns started."""
    operation = record.running(operation_id)
    kind = operation.plan.kind
    layout = replaced(record.layout, operation.plan, seals)
    return replace(
        record,
        layout=layout,
        operation=None,
        last_operation=_finished(operation, Outcome.COMMITTED, layout.epoch, now_ms, operation.reason),
        last_split_at_ms=now_ms if kind is OperationKind.SPLIT else record.last_split_at_ms,
        last_merge_at_ms=now_ms if kind is OperationKind.MERGE else record.last_merge_at_ms,
    )


def aborted(record: TopicRecord, operation_id: str, *, now_ms: int, reason: str) -> TopicRecord:
    """Aborts before the point of no return: planned children become garbage, their ids are not reused."""
    operation = record.running(operation_id)
    if operation.phase is not Phase.CREATE:
        raise OperationRunning(operation)
    return replace(
        record,
        operation=None,
        last_operation=_finished(operation, Outcome.ABORTED, record.epoch, now_ms, reason),
        garbage=(*record.garbage, *operation.plan.children),
    )


def pruned(record: TopicRecord, segment_ids: Iterable[int]) -> TopicRecord:
    """First phase of garbage collection: the segments leave the layout (epoch + 1) and become garbage."""
    if record.operation is not None:
        raise OperationRunning(record.operation)
    gone = [record.layout[one] for one in sorted(set(segment_ids))]
    layout = record.layout.pruned(segment.segment_id for segment in gone)
    # A thousand partitions have a thousand children each.
    gone = [one if one.legacy_topic_name is None else replace(one, child_ids=()) for one in gone]
    return replace(record, layout=layout, garbage=(*record.garbage, *gone))


def swept(record: TopicRecord, segment_ids: Iterable[int]) -> TopicRecord:
    """Second phase: storage has confirmed the deletion of these segments. Safe to repeat."""
    done = set(segment_ids)
    return replace(record, garbage=tuple(segment for segment in record.garbage if segment.segment_id not in done))


def _finished(operation: Operation, outcome: Outcome, epoch: int, now_ms: int, reason: str) -> FinishedOperation:
    return FinishedOperation(operation.operation_id, operation.plan.kind, outcome, epoch, now_ms, reason)
