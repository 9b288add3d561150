"""Records and keys of a migration.

    /pulsar/migration-coordinator/migration            the state; in the source it decides
    /pulsar/migration-coordinator/coordinator          ephemeral: lease of the coordinator
    /pulsar/migration-coordinator/progress             counts of the copy, each second, for display
    /pulsar/migration-coordinator/participants/NAME    ephemeral: one process that writes metadata, and its state

`phase` and `targetUrl` are PIP-454's fields. During the pre-copy the phase is NOT_STARTED, because writers are not
concerned yet. The target has a record too, with role TARGET, so that it is not used before it is complete.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from anabranch.metadata.interface import RESERVED, MetadataStore, StoreIncompatible, is_within
from anabranch.model.errors import Error

ROOT = "/pulsar/migration-coordinator"
MIGRATION = f"{ROOT}/migration"
COORDINATOR = f"{ROOT}/coordinator"
PARTICIPANTS = f"{ROOT}/participants"
BARRIERS = f"{ROOT}/barriers"
PROGRESS = f"{ROOT}/progress"
TARGET_LEASE = f"{RESERVED}/migration-lease"
"""Ephemeral, in the target: only its holder writes there. Reserved, because the target has no other keys at first."""


MOVED = f"{RESERVED}/moved"
"""Stands for MIGRATION while a former source is emptied, so that a process that still uses it learns where to go."""


class Phase(StrEnum):
    NOT_STARTED = "NOT_STARTED"
    PREPARATION = "PREPARATION"
    COPYING = "COPYING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class SubPhase(StrEnum):
    """The step within the phase, for display."""

    PRE_COPY = "PRE_COPY"
    VERIFY_TREE = "VERIFY_TREE"
    CLOSE_GATES = "CLOSE_GATES"
    COPY_CHANGES = "COPY_CHANGES"
    SWITCH = "SWITCH"
    DONE = "DONE"


class Role(StrEnum):
    SOURCE = "source"
    TARGET = "target"


class MigrationFailed(Error):
    """The migration ended without a change; the source is still the store of the cluster."""

    code = "metadata-migration-failed"


@dataclass(frozen=True, slots=True)
class Counts:
    records: int = 0
    value_bytes: int = 0
    changed: int = 0  # keys copied again because they changed during the copy
    ephemerals: int = 0
    verified: int = 0  # compared with the source so far
    expected: int = 0  # records to copy, about; 0: not known


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """State of one attempt. `run` is unique per attempt; `times` maps sub-phases to wall-clock milliseconds."""

    phase: Phase
    target_url: str
    source_url: str = ""
    role: Role = Role.SOURCE
    attempt: int = 1
    run: str = ""
    coordinator: str = ""
    sub_phase: SubPhase | None = None
    started_ms: int = 0
    times: dict[str, int] = field(default_factory=dict)
    counts: Counts = Counts()
    error: str = ""

    @property
    def is_running(self) -> bool:
        return self.phase in (Phase.PREPARATION, Phase.COPYING) or (
            self.phase is Phase.NOT_STARTED and self.sub_phase is not None
        )

    @property
    def is_running_here(self) -> bool:
        """Whether the store that holds this record is the source of a running attempt."""
        return self.is_running and self.role is Role.SOURCE

    @property
    def is_abandoned_target(self) -> bool:
        """Whether the store that holds this record is the target of an attempt that did not complete."""
        return self.role is Role.TARGET and self.phase is not Phase.COMPLETED

    @property
    def has_moved(self) -> bool:
        """Whether the store that holds this record is no longer the store of the cluster."""
        return self.phase is Phase.COMPLETED and self.role is Role.SOURCE

    def at(self, phase: Phase, sub_phase: SubPhase, now_ms: int, **changes: Any) -> MigrationRecord:
        return replace(self, phase=phase, sub_phase=sub_phase, times={**self.times, str(sub_phase): now_ms}, **changes)

    def failed(self, error: str, now_ms: int) -> MigrationRecord:
        return replace(self, phase=Phase.FAILED, error=error, times={**self.times, "FAILED": now_ms})

    def to_fields(self) -> dict[str, Any]:
        """As shown by the REST API; the first two fields are PIP-454's."""
        return {
            "phase": str(self.phase),
            "targetUrl": self.target_url,
            "sourceUrl": self.source_url,
            "role": str(self.role),
            "attempt": self.attempt,
            "run": self.run,
            "coordinator": self.coordinator,
            "subPhase": None if self.sub_phase is None else str(self.sub_phase),
            "startedMs": self.started_ms,
            "timesMs": self.times,
            "counts": asdict(self.counts),
            "error": self.error or None,
        }

    def rate(self, now_ms: int) -> tuple[float, float | None]:
        """Records per second of the present step, and the estimated rest of it in seconds where the whole is known."""
        seconds = max(now_ms - self.times.get(str(self.sub_phase), now_ms), 1) / 1000
        counts = self.counts
        done, whole = (
            (counts.verified, counts.records)
            if self.sub_phase is SubPhase.VERIFY_TREE
            else (counts.records, counts.expected)
        )
        rate = done / seconds
        is_estimated = rate and whole and self.sub_phase in (SubPhase.PRE_COPY, SubPhase.VERIFY_TREE)
        return rate, max(whole - done, 0) / rate if is_estimated else None

    def with_progress(self, stored: bytes) -> MigrationRecord:
        """With the counts of a progress record, if it is of this attempt."""
        other = MigrationRecord.from_bytes(stored)
        if other.run != self.run or not self.is_running:
            return self
        if other.phase is not self.phase:
            return replace(self, counts=other.counts)
        return replace(self, counts=other.counts, sub_phase=other.sub_phase, times=other.times)

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_fields()).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> MigrationRecord:
        """Also reads a record with PIP-454's two fields only. Unknown fields are ignored."""
        try:
            fields = json.loads(stored)
            sub_phase = fields.get("subPhase")
            counts = fields.get("counts") or {}
            return cls(
                phase=Phase(fields["phase"]),
                target_url=str(fields.get("targetUrl") or ""),
                source_url=str(fields.get("sourceUrl") or ""),
                role=Role(fields.get("role", "source")),
                attempt=int(fields.get("attempt", 1)),
                run=str(fields.get("run", "")),
                coordinator=str(fields.get("coordinator", "")),
                sub_phase=None if sub_phase is None else SubPhase(sub_phase),
                started_ms=int(fields.get("startedMs", 0)),
                times={str(name): int(ms) for name, ms in (fields.get("timesMs") or {}).items()},
                counts=Counts(**{name: int(counts.get(name, 0)) for name in Counts.__slots__}),
                error=str(fields.get("error") or ""),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreIncompatible(f"{MIGRATION} cannot be read by this release: {error}") from error


class State(StrEnum):
    """Of a participant."""

    JOINED = "JOINED"
    READY = "READY"
    SWITCHED = "SWITCHED"


@dataclass(frozen=True, slots=True)
class ParticipantRecord:
    state: State
    run: str = ""  # the attempt that the state belongs to

    def to_bytes(self) -> bytes:
        return json.dumps({"state": str(self.state), "run": self.run}).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> ParticipantRecord:
        try:
            fields = json.loads(stored)
            return cls(State(fields["state"]), str(fields.get("run", "")))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreIncompatible(f"a participant record cannot be read by this release: {error}") from error


async def read_record(store: MetadataStore) -> MigrationRecord | None:
    """The record that says whether this store is the cluster's."""
    found = await store.get(MIGRATION) or await store.get(MOVED)
    return None if found is None else MigrationRecord.from_bytes(found.value)


def is_copied(key: str) -> bool:
    """Whether a key belongs to the tree that is moved."""
    return not is_within(key, ROOT)
