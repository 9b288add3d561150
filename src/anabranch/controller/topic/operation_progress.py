"""What the owners of segments have answered for the running operation. In memory; a new leader asks again."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from anabranch.controller import segment_host as host
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import Adopted, Answer, Request, SealFacts, Status


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """How far a migration is: `done` of `total` partitions or segments in its current step."""

    name: str  # ADOPT, REGISTER, CREATE, SEAL, COMMIT, or UNDO
    done: int
    total: int


class Progress:
    def __init__(self, operation_id: str, since_ms: int) -> None:
        self.operation_id, self.since_ms = operation_id, since_ms
        self.created: set[int] = set()
        self.adopted: dict[int, Adopted] = {}
        self.completed: set[int] = set()  # adopted, with a cursor of every subscription that any of them has
        self.has_asked_registration = self.has_registered = False
        self.seals: dict[int, SealFacts] = {}
        self.fenced: set[int] = set()
        self.has_asked_seal = False
        self.abort_reason: str | None = None

    @property
    def must_go_forward(self) -> bool:
        return self.has_asked_seal or bool(self.seals)

    def note(self, request: Request, answer: Answer) -> None:
        segment_id = request.segment.segment_id
        if isinstance(request, host.Create):
            (self.completed if segment_id in self.adopted else self.created).add(segment_id)
        elif isinstance(answer, Adopted):
            self.adopted[segment_id] = answer
        elif isinstance(answer, SealFacts):
            self.seals[segment_id] = answer
        elif isinstance(answer, Status):
            self.fenced.add(segment_id)
            if answer.sealed is not None:
                self.seals[segment_id] = answer.sealed

    def lacking(self, subscriptions: Set[str]) -> dict[int, list[str]]:
        """Those of the subscriptions that adopted partitions do not have yet."""
        found = {
            one: sorted(subscriptions - {name for name, _ in adopted.subscriptions})
            for one, adopted in self.adopted.items()
            if one not in self.completed
        }
        return {one: names for one, names in found.items() if names}


def migration_step(record: TopicRecord, progress: Progress | None, deleted: Set[int]) -> MigrationStep | None:
    """None if no migration runs. `deleted`: segments that are released or deleted by an undo."""
    if not record.is_migrating or record.operation is None:
        return None
    plan = record.operation.plan
    partitions = len(plan.parent_ids)
    if record.is_deleting:
        wanted = {*record.segments, *plan.child_ids}
        return MigrationStep("UNDO", len(wanted & deleted), len(wanted))
    if progress is None or len(progress.adopted) < partitions:
        return MigrationStep("ADOPT", 0 if progress is None else len(progress.adopted), partitions)
    if len(progress.seals) == partitions:
        return MigrationStep("COMMIT", 0, 1)
    if progress.has_asked_seal:
        return MigrationStep("SEAL", len(progress.seals), partitions)
    names = {name for adopted in progress.adopted.values() for name, _ in adopted.subscriptions}
    if names and not progress.has_registered and not progress.created:
        return MigrationStep("REGISTER", partitions - len(progress.lacking(names)), partitions)
    return MigrationStep("CREATE", len(progress.created), len(plan.child_ids))
