"""Counters of the operations that this broker has led. Never awaits.

They are derived from the records that controllers push (`TopicListener.topic_changed`): each record is compared with
the last one, so the operations themselves count nothing.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from anabranch.controller.records.topic_record import FinishedOperation, Outcome, TopicRecord
from anabranch.model.names import TopicName
from anabranch.model.replacement import OperationKind

_ENDED = {
    (OperationKind.SPLIT, Outcome.COMMITTED): "segment split",
    (OperationKind.MERGE, Outcome.COMMITTED): "segments merged",
    (OperationKind.MIGRATION, Outcome.COMMITTED): "regular topic migrated to a scalable one",
    (OperationKind.SPLIT, Outcome.ABORTED): "split aborted, the layout is unchanged",
    (OperationKind.MERGE, Outcome.ABORTED): "merge aborted, the layout is unchanged",
    (OperationKind.MIGRATION, Outcome.ABORTED): "migration aborted, the topic is unchanged",
}


@dataclass(slots=True)
class Totals:
    """Since the process started."""

    leaderships: int = 0  # leader terms acquired
    splits: int = 0
    merges: int = 0
    aborted: int = 0
    sealed: int = 0  # parents of splits and merges
    collected: int = 0  # segments removed by garbage collection
    operation_ms: int = 0  # sum over splits and merges, from plan to commit


@dataclass(frozen=True, slots=True)
class EndedOperation:
    """A split, merge or migration that ended under a leader of this broker."""

    operation_id: str
    kind: OperationKind
    outcome: Outcome
    epoch: int  # of the layout after it
    parents: tuple[int, ...]  # sealed by it
    children: tuple[int, ...]  # created by it
    took_ms: int
    reason: str  # why it was started, or why it was aborted

    @property
    def event(self) -> str:
        """For the log."""
        return _ENDED[self.kind, self.outcome]

    @property
    def fields(self) -> dict[str, str | int]:
        """Of the log line."""
        return {
            "segments": ",".join(map(str, self.parents)),
            "children": ",".join(map(str, self.children)),
            "epoch": self.epoch,
            "ms": self.took_ms,
            "operation": self.operation_id,
            "reason": self.reason or "requested",
        }


@dataclass(slots=True)
class _Known:
    term: int
    incarnation: int
    finished: str | None  # id of the last finished operation
    segments: frozenset[int]
    started_ms: dict[str, int]


class OperationCounts:
    def __init__(self) -> None:
        self.totals = Totals()
        self._known: dict[TopicName, _Known] = {}

    def __len__(self) -> int:
        """Topics with a state here."""
        return len(self._known)

    def on_record(self, topic: TopicName, record: TopicRecord | None) -> EndedOperation | None:
        """A controller of this broker pushes its record; None: the topic was deleted. Returns the operation that has
        ended since the last record, once."""
        if record is None:
            self._known.pop(topic, None)
            return None
        ended = None
        last, segments = record.last_operation, frozenset(record.segments)
        known = self._known.get(topic)
        if known is None or known.term != record.leader_term or known.incarnation != record.incarnation:
            self.totals.leaderships += 1
            started = {} if known is None else known.started_ms
            finished = None if last is None else last.operation_id
            if record.operation is None and finished in started:
                finished = None  # it ended under the new term: counted below
            known = _Known(record.leader_term, record.incarnation, finished, segments, started)
            self._known[topic] = known
        if record.operation is not None:
            known.started_ms = {record.operation.operation_id: record.operation.started_at_ms}
        elif last is not None and last.operation_id != known.finished:
            known.finished = last.operation_id
            started_ms = known.started_ms.pop(last.operation_id, last.finished_at_ms)
            ended = _ended(last, max(0, last.finished_at_ms - started_ms), record)
            self._count(ended)
        self.totals.collected += len(known.segments - segments)
        known.segments = segments
        return ended

    def keep(self, led: Container[TopicName]) -> None:
        """Drops the state of topics that are not led here."""
        self._known = {topic: known for topic, known in self._known.items() if topic in led}

    def _count(self, ended: EndedOperation) -> None:
        if ended.outcome is Outcome.ABORTED:
            self.totals.aborted += 1
            return
        if ended.kind is OperationKind.SPLIT:
            self.totals.splits += 1
        elif ended.kind is OperationKind.MERGE:
            self.totals.merges += 1
        self.totals.operation_ms += ended.took_ms
        self.totals.sealed += len(ended.parents)


def _ended(last: FinishedOperation, took_ms: int, record: TopicRecord) -> EndedOperation:
    parents, children = [], []
    if last.outcome is not Outcome.ABORTED:
        parents = [one.segment_id for one in record.segments.values() if one.sealed_at_epoch == record.epoch]
        children = [one.segment_id for one in record.segments.values() if one.created_at_epoch == record.epoch]
    return EndedOperation(
        last.operation_id, last.kind, last.outcome, last.epoch, tuple(parents), tuple(children), took_ms, last.reason
    )
