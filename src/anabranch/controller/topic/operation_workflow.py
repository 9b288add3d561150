"""The operation workflow: all changes of one topic's record by its leader, one after another. Never awaits.

    PLAN ── CREATE ── SEAL ── COMMIT ── TELL          one compare-and-set each for PLAN and COMMIT, nothing in between
               └── abort: parents fenced, then one compare-and-set; children become garbage and are swept

A migration also adopts the parents, which are partitions of a regular topic, and registers their subscriptions before
CREATE. Its abort releases the parents and deletes children and record.

The next step is derived from the record and from the owners' answers, never from memory of earlier steps. So a new
leader continues where the last one stopped, and a write with unknown outcome is settled by reading again: the record
has the operation's id while it runs and, as the last operation, afterwards; no other leader can write meanwhile.

The point of no return is the first SEAL that may have arrived. A leader that has sent none cannot know whether the last
leader did. Before it aborts, it fences the parents, which makes late seals impossible; if one is sealed already, it
rolls forward instead. For hosts without fencing the SEAL phase is written into the record first (`journals_seal`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from anabranch.controller import segment_host as host
from anabranch.controller.events import LeadershipLost, NotLeading, StepDown, TopicGone, Version
from anabranch.controller.records.topic_record import (
    MigrationOptions,
    NoSuchOperation,
    Operation,
    Outcome,
    Phase,
    TopicRecord,
    aborted,
    committed,
    planned,
    pruned,
    sealing,
    swept,
    undoing,
    with_term,
)
from anabranch.controller.segment_host import CursorSpec, Request, SegmentRef, Start
from anabranch.controller.topic.adoption import clients_text, subscription_kinds
from anabranch.controller.topic.operation_events import (
    AnnounceDeleted,
    AnnounceLayout,
    AnnouncePlan,
    Answered,
    Ask,
    Asked,
    Call,
    DeleteCall,
    Effect,
    Event,
    Failed,
    MergeCall,
    MigrationCall,
    MigrationUndone,
    OperationAborted,
    PolicyCall,
    PruneCall,
    ReadRecord,
    RecordDoubtful,
    RecordRemoved,
    RecordSaved,
    RecordSeen,
    RecordUnread,
    RegisterSubscriptions,
    RemoveRecord,
    Reply,
    Rest,
    Rested,
    SaveRecord,
    SplitCall,
    SubscriptionsKnown,
    SubscriptionsRegistered,
    TooManyCalls,
)
from anabranch.controller.topic.operation_progress import MigrationStep, Progress, migration_step
from anabranch.model.errors import Error
from anabranch.model.layout import LayoutLimits
from anabranch.model.names import TopicName
from anabranch.model.replacement import OperationKind, Replacement, plan_merge, plan_split
from anabranch.model.segment import Seal, Segment, backing_topic

CALLS_MAX = 64
"""Calls that wait or run."""

_Key = tuple[type[object], object]


class OperationWorkflow:
    """For one topic and one leader term. `create_ms_max`: the operation is aborted if its children do not exist by
    then."""

    def __init__(
        self,
        topic: TopicName,
        term: int,
        *,
        limits: LayoutLimits,
        create_ms_max: int = 30_000,
        journals_seal: bool = False,
    ) -> None:
        self.limits = limits
        self.record: TopicRecord | None = None  # the last known stored record; None: it must be read
        self._topic, self._term = topic, term
        self._create_ms_max, self._journals_seal = create_ms_max, journals_seal
        self._now_ms = 0
        self._version: Version = 0
        self._incarnation: int | None = None
        self._saving: TopicRecord | RemoveRecord | None = None
        self._calls: dict[str, Call] = {}  # first come, first served
        self._subscriptions: frozenset[str] | None = None
        self._progress: Progress | None = None
        self._made: set[int] = set()  # initial segments of a new topic that exist
        self._deleted: set[int] = set()
        self._busy: set[_Key] = set()  # sent and not answered, or pausing
        self._in_flight: Counter[tuple[type[object], str]] = Counter()  # requests by their type and operation
        self._failures: dict[_Key, int] = {}
        self._announced: tuple[int, str | None] | None = (
            None  # epoch and operation of the last AnnouncePlan or AnnounceLayout
        )
        self._forbids_migration = ""
        self._is_over = False

    def begin(self) -> list[Effect]:
        return [ReadRecord()]

    def forbid_migration(self, reason: str) -> None:
        """Called before `begin`: a planned migration is undone, if that is still possible."""
        self._forbids_migration = reason

    @property
    def is_idle(self) -> bool:
        """No call waits and no write runs, so a new call starts at once."""
        record = self.record
        if record is None or record.is_deleting or record.leader_term != self._term:
            return False
        return record.operation is None and not self._calls and self._saving is None

    @property
    def phase(self) -> Phase | None:
        """Phase of the running operation, in finer steps than the record has."""
        if self.record is None or self.record.operation is None or self._progress is None:
            return None
        if isinstance(self._saving, TopicRecord) and self._saving.operation is None:
            return Phase.COMMIT
        return Phase.SEAL if self._progress.has_asked_seal else self.record.operation.phase

    @property
    def migration_step(self) -> MigrationStep | None:
        return None if self.record is None else migration_step(self.record, self._progress, self._deleted)

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self._now_ms = max(self._now_ms, now_ms)
        if self._is_over:
            if isinstance(event, Asked):
                return [Reply(event.call.operation_id, NotLeading(f"{self._topic} is led elsewhere"), -1)]
            return []
        match event:
            case RecordSeen(record, version):
                if self._saving is not None:
                    return []  # the outcome of the running write decides
                if record is None:
                    return self._gone()
                self.record, self._version = record, version
                self._failures.pop(_key(ReadRecord()), None)
            case RecordUnread():
                return [self._rest(ReadRecord())]
            case RecordSaved(version):
                assert isinstance(self._saving, TopicRecord)
                self.record, self._version, self._saving = self._saving, version, None
            case RecordRemoved():
                return self._gone()
            case RecordDoubtful():
                self._saving = self.record = None
                return [ReadRecord()]
            case Answered(request, answer):
                self._busy.discard(_key(request))
                self._failures.pop(_key(request), None)
                self._note(request, answer)
                if self._has_more(request):
                    return []  # the last answer decides: a migration has thousands of them
            case Failed(request, error):
                self._has_more(request)
                return self._failed(request, error)
            case Rested(what):
                self._busy.discard(_key(what))
                if isinstance(what, ReadRecord):
                    return [ReadRecord()]
            case Asked(call):
                if len(self._calls) >= CALLS_MAX and call.operation_id not in self._calls:
                    return [Reply(call.operation_id, TooManyCalls(f"{CALLS_MAX} operations of {self._topic} wait"), -1)]
                self._calls.setdefault(call.operation_id, call)
            case SubscriptionsKnown(subscriptions):
                self._subscriptions = subscriptions
            case SubscriptionsRegistered(operation_id):
                if self._progress is not None and self._progress.operation_id == operation_id:
                    self._progress.has_registered = True
            case LeadershipLost(reason):
                return self._step_down(reason)
            case _:
                assert_never(event)
        return self._decide()

    # answers of segment owners ----------------------------------------------------------------------------------------
    def _note(self, request: Request, answer: host.Answer) -> None:
        segment_id, progress = request.segment.segment_id, self._progress
        if isinstance(request, host.Delete | host.Release):
            self._deleted.add(segment_id)
        elif isinstance(request, host.Create) and request.operation == _INITIAL:
            self._made.add(segment_id)
        elif progress is not None and progress.operation_id == request.operation:
            progress.note(request, answer)  # others are of an operation that is finished

    def _has_more(self, request: Request) -> bool:
        """Called when the request has ended: whether others like it are still in flight."""
        kind = type(request), request.operation
        self._in_flight[kind] -= 1
        if self._in_flight[kind] > 0:
            return True
        del self._in_flight[kind]
        return False

    def _failed(self, request: Request, error: Error) -> list[Effect]:
        if isinstance(error, host.StaleTerm):
            return self._step_down(str(error))
        progress = self._progress
        is_ours = progress is not None and progress.operation_id == request.operation
        if is_ours and isinstance(request, host.Create | host.Adopt) and not error.retryable:
            self._busy.discard(_key(request))
            self._abort(str(error))
            return self._decide()
        return [self._rest(request), *self._decide()]

    def _rest(self, what: ReadRecord | Request) -> Rest:
        key = _key(what)
        self._busy.add(key)
        self._failures[key] = self._failures.get(key, 0) + 1
        return Rest(what, self._failures[key])

    def _ask(self, requests: Iterable[Request]) -> list[Effect]:
        effects: list[Effect] = []
        for request in requests:
            if _key(request) not in self._busy:
                self._busy.add(_key(request))
                self._in_flight[type(request), request.operation] += 1
                effects.append(Ask(request))
        return effects

    def _ref(self, segment: Segment) -> SegmentRef:
        assert self.record is not None
        return SegmentRef(backing_topic(self._topic, segment), self.record.incarnation, segment.segment_id)

    # decisions --------------------------------------------------------------------------------------------------------
    def _decide(self) -> list[Effect]:
        record = self.record
        if record is None or self._saving is not None:
            return []
        if record.leader_term > self._term:
            return self._step_down(f"the leader of term {record.leader_term} has written the topic record")
        if self._incarnation not in (None, record.incarnation):
            return self._step_down(f"the topic was deleted and created again (incarnation {record.incarnation})")
        self._incarnation = record.incarnation
        effects = self._settle(record)
        if record.leader_term < self._term:
            return effects + self._begin_term(record)
        if record.is_deleting:
            return effects + self._delete_topic(record)
        if record.operation is not None:
            effects += self._drive(record, record.operation)
        else:
            self._progress = None
            effects += self._start(record)
        if self._saving is None:
            effects += self._sweep(record)
        return effects

    def _settle(self, record: TopicRecord) -> list[Effect]:
        """Announces a new plan or layout, and answers calls whose outcome is in the record."""
        effects: list[Effect] = []
        if record.leader_term == self._term and not record.is_deleting:
            now = record.epoch, None if record.operation is None else record.operation.operation_id
            if now != self._announced:
                effects.append((AnnounceLayout if record.operation is None else AnnouncePlan)(record))
            self._announced = now
        for operation_id, call in tuple(self._calls.items()):
            outcome = record.outcome(operation_id)
            if outcome is Outcome.COMMITTED or _is_in_record(record, call):
                effects.append(self._reply(call, None))
            elif outcome is Outcome.ABORTED:
                assert record.last_operation is not None
                effects.append(self._reply(call, OperationAborted(record.last_operation.reason)))
        return effects

    def _begin_term(self, record: TopicRecord) -> list[Effect]:
        if record.leader_term == 0 and record.migrated_from is None:
            # Never led before: its segments may not exist yet, and it has no subscriptions.
            unmade = [segment for segment in record.layout.active if segment.segment_id not in self._made]
            if unmade:
                return self._ask(host.Create(_INITIAL, self._ref(segment), ()) for segment in unmade)
        return self._save(record, f"term {self._term} begins")

    def _start(self, record: TopicRecord) -> list[Effect]:
        """Starts the next possible call; calls that are not possible are refused."""
        effects: list[Effect] = []
        for call in tuple(self._calls.values()):
            try:
                changed = self._begun(record, call)
            except Error as error:
                effects.append(self._reply(call, error))
                continue
            return effects + self._save(changed, f"{type(call).__name__} {call.operation_id}")
        return effects

    def _begun(self, record: TopicRecord, call: Call) -> TopicRecord:
        match call:
            case SplitCall(operation_id, segment_id, ways, points, reason):
                plan = plan_split(
                    record.layout, segment_id, ways=ways, points=points, now_ms=self._now_ms, limits=self.limits
                )
                return planned(record, operation_id, plan, now_ms=self._now_ms, reason=reason)
            case MergeCall(operation_id, segment_ids, reason):
                plan = plan_merge(record.layout, segment_ids, now_ms=self._now_ms, limits=self.limits)
                return planned(record, operation_id, plan, now_ms=self._now_ms, reason=reason)
            case PruneCall(_, segment_ids):
                return pruned(record, [one for one in segment_ids if one in record.segments])
            case DeleteCall(_, incarnation):
                if incarnation not in (None, record.incarnation):
                    raise TopicGone(f"incarnation {incarnation} of {self._topic} was deleted")
                return replace(record, is_deleting=True)
            case PolicyCall(_, policy):
                return replace(record, auto_scale_policy=policy)
            case MigrationCall(operation_id):
                raise NoSuchOperation(f"migration {operation_id} of {self._topic} is over")
            case _:
                assert_never(call)

    def _drive(self, record: TopicRecord, operation: Operation) -> list[Effect]:
        plan, operation_id = operation.plan, operation.operation_id
        if self._progress is None or self._progress.operation_id != operation_id:
            self._progress = Progress(operation_id, self._now_ms)
        progress = self._progress
        if self._subscriptions is None:
            return []  # children must not exist without their cursors
        if operation.phase is Phase.CREATE and self._now_ms - progress.since_ms > self._create_ms_max:
            self._abort(f"child segments could not be created within {self._create_ms_max} ms")
        if progress.abort_reason is not None:
            return self._drive_abort(record, plan, progress)
        if plan.kind is OperationKind.MIGRATION:
            waits = self._drive_adoption(record, operation, progress)
            if waits is not None:
                return waits
        uncreated = [child for child in plan.children if child.segment_id not in progress.created]
        if uncreated:
            cursors = _at_earliest(sorted(self._subscriptions))
            return self._ask(host.Create(operation_id, self._ref(child), cursors) for child in uncreated)
        if self._journals_seal and operation.phase is Phase.CREATE:
            return self._save(sealing(record, operation_id), f"seal {operation_id}")
        unsealed = [record.layout[one] for one in plan.parent_ids if one not in progress.seals]
        if unsealed:
            progress.has_asked_seal = True
            # Producers of a partition find the children in the committed layout: each partition has the same ones.
            is_migration = plan.kind is OperationKind.MIGRATION
            children = () if is_migration else tuple(self._ref(child) for child in plan.children)
            return self._ask(host.Seal(operation_id, self._ref(parent), children) for parent in unsealed)
        seals = {one: Seal(facts.sealed_at_ms, facts.last_position) for one, facts in progress.seals.items()}
        done = committed(record, operation_id, seals, now_ms=self._now_ms)
        return self._save(done, f"commit {operation_id}")

    def _drive_adoption(self, record: TopicRecord, operation: Operation, progress: Progress) -> list[Effect] | None:
        """None when all partitions are adopted, have the same cursors, and their subscriptions are registered."""
        options = MigrationOptions.of(operation)
        if self._forbids_migration and not progress.must_go_forward and not progress.adopted:
            reason, self._forbids_migration = self._forbids_migration, ""
            self._abort(reason)
            return self._drive_abort(record, operation.plan, progress)
        new = [record.layout[one] for one in operation.plan.parent_ids if one not in progress.adopted]
        if new:
            return self._ask(host.Adopt(operation.operation_id, self._ref(one), options.force) for one in new)
        clients = [client for one in progress.adopted.values() for client in one.clients]
        if clients and not options.force and not progress.must_go_forward:
            self._abort(clients_text(clients))
            return self._drive_abort(record, operation.plan, progress)
        kinds = subscription_kinds(progress.adopted.values(), options.kinds)
        assert self._subscriptions is not None
        new_names = kinds.keys() - self._subscriptions
        if progress.has_registered or not new_names:
            return None
        if lacking := progress.lacking(new_names):
            return self._ask(
                host.Create(operation.operation_id, self._ref(record.layout[one]), _at_earliest(names))
                for one, names in lacking.items()
            )
        if progress.has_asked_registration:
            return []
        progress.has_asked_registration = True
        return [RegisterSubscriptions(operation.operation_id, kinds)]

    def _abort(self, reason: str) -> None:
        """Aborts the operation, if that is still possible."""
        if self._progress is not None and not self._progress.must_go_forward:
            self._progress.abort_reason = self._progress.abort_reason or reason

    def _drive_abort(self, record: TopicRecord, plan: Replacement, progress: Progress) -> list[Effect]:
        assert progress.abort_reason is not None
        assert record.operation is not None
        if progress.must_go_forward or record.operation.phase is Phase.SEAL:  # an earlier leader got further
            progress.abort_reason, progress.since_ms = None, self._now_ms
            return self._drive(record, record.operation)
        unfenced = [record.layout[one] for one in plan.parent_ids if one not in progress.fenced]
        if unfenced:
            return self._ask(host.Fence(progress.operation_id, self._ref(parent)) for parent in unfenced)
        if plan.kind is OperationKind.MIGRATION:
            return self._save(undoing(record, progress.operation_id, progress.abort_reason), "undo the migration")
        given_up = aborted(record, progress.operation_id, now_ms=self._now_ms, reason=progress.abort_reason)
        return self._save(given_up, f"abort {progress.operation_id}")

    def _sweep(self, record: TopicRecord) -> list[Effect]:
        """Deletes garbage segments, then records that when nothing else runs."""
        left = [segment for segment in record.garbage if segment.segment_id not in self._deleted]
        if left:
            return self._ask(host.Delete(_SWEEP, self._ref(segment)) for segment in left)
        if record.garbage and record.operation is None:
            return self._save(swept(record, [segment.segment_id for segment in record.garbage]), "swept")
        return []

    def _delete_topic(self, record: TopicRecord) -> list[Effect]:
        """Also the undo of a migration: its partitions are released instead of deleted."""
        segments = (*record.segments.values(), *record.garbage, *record.planned_children)
        left = [segment for segment in segments if segment.segment_id not in self._deleted]
        if left:
            kept = record.segments if record.is_migrating else ()
            return self._ask(
                (host.Release if segment.segment_id in kept else host.Delete)(_SWEEP, self._ref(segment))
                for segment in left
            )
        self._saving = RemoveRecord(record.incarnation, self._version)
        return [self._saving]

    # ends -------------------------------------------------------------------------------------------------------------
    def _save(self, record: TopicRecord, reason: str) -> list[Effect]:
        self._saving = with_term(record, self._term)
        return [SaveRecord(self._saving, self._version, reason)]

    def _reply(self, call: Call, error: Error | None) -> Reply:
        del self._calls[call.operation_id]
        return Reply(call.operation_id, error, -1 if self.record is None else self.record.epoch)

    def _gone(self) -> list[Effect]:
        self._is_over = True
        effects: list[Effect] = [AnnounceDeleted()]
        last, undone = self.record, None
        if last is not None and last.is_deleting and last.operation is not None:
            undone = MigrationUndone(f"the migration to {self._topic} was undone: {last.operation.reason}")
        for call in tuple(self._calls.values()):
            gone = None if isinstance(call, DeleteCall) else TopicGone(f"{self._topic} was deleted")
            effects.append(self._reply(call, undone or gone))
        return effects

    def _step_down(self, reason: str) -> list[Effect]:
        self._is_over = True
        replies = [self._reply(call, NotLeading(reason)) for call in tuple(self._calls.values())]
        return [*replies, StepDown(reason)]


_INITIAL = "birth"
_SWEEP = "sweep"


def _at_earliest(subscriptions: Iterable[str]) -> tuple[CursorSpec, ...]:
    return tuple(CursorSpec(name, Start.EARLIEST) for name in subscriptions)


def _is_in_record(record: TopicRecord, call: Call) -> bool:
    """For calls that are no operation: the record is as the call wants it."""
    match call:
        case PruneCall(_, segment_ids):
            return record.segments.keys().isdisjoint(segment_ids)
        case PolicyCall(_, policy):
            return record.auto_scale_policy == policy
        case _:
            return False


def _key(what: ReadRecord | Request) -> _Key:
    return type(what), None if isinstance(what, ReadRecord) else what.segment.name
