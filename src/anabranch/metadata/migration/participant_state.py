"""What a process does when a migration needs it. Decides; never awaits.

    IDLE ─ PREPARATION ─► CLOSING ─ gate closed ─► PREPARING ─ prepared ─► READY ─ COMPLETED ─► SWITCHING ─► IDLE
                             └──────── any failure, or FAILED in the record: everything is undone ───────► IDLE

A process that finds COMPLETED before it was READY was not waited for. It switches too, but its sessions end, because
others already decided about its keys.

A process never opens its gate to the source again by itself: only after FAILED is in the record. It asks for FAILED by
compare-and-set, so that either the whole cluster moves or none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from anabranch.metadata.migration.record import MigrationRecord, Phase, Role


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The record of the source as last read; None if there is none."""

    record: MigrationRecord | None


@dataclass(frozen=True, slots=True)
class GateClosed:
    """No write of this process is under way."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The target is open and holds this process's ephemeral keys."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The gate could not be closed, the target could not be prepared, or its sessions are about to end."""

    reason: str


@dataclass(frozen=True, slots=True)
class Retry:
    """The step of this stage was not answered, or failed and must be repeated."""


@dataclass(frozen=True, slots=True)
class Switched:
    """This process uses the target."""


Event = RecordSeen | GateClosed | Prepared | StepFailed | Retry | Switched


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CloseGate:
    """The answer is GateClosed or StepFailed."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Open the target and, with `keeps_sessions`, copy the ephemeral keys; the answer is Prepared or StepFailed.

    The record is read again before the answer, so that a decision made meanwhile is known first.
    """

    target_url: str
    keeps_sessions: bool


@dataclass(frozen=True, slots=True)
class ReportReady:
    run: str


@dataclass(frozen=True, slots=True)
class AskFailed:
    """Write FAILED over the record of this attempt, unless it is decided; the new record is then seen."""

    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class Switch:
    """The answer is Switched."""


@dataclass(frozen=True, slots=True)
class Undo:
    """Discard the target, open the gate to the source."""


Effect = CloseGate | Prepare | ReportReady | AskFailed | Switch | Undo


class Stage(Enum):
    IDLE = "idle"
    CLOSING = "closing"
    PREPARING = "preparing"
    READY = "ready"
    REFUSING = "refusing"  # asked for FAILED, not seen yet
    SWITCHING = "switching"


class ParticipantMachine:
    def __init__(self) -> None:
        self.stage = Stage.IDLE
        self._run = ""
        self._url = ""
        self._is_decided = False
        self._keeps_sessions = True

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case RecordSeen(record):
                return self._seen(record)
            case GateClosed():
                if self.stage is not Stage.CLOSING:
                    return []
                self.stage = Stage.PREPARING
                self._keeps_sessions = not self._is_decided
                return [Prepare(self._url, self._keeps_sessions)]
            case Prepared():
                return self._prepared()
            case StepFailed(reason):
                return self._failed(reason)
            case Retry():
                return self._repeated()
            case Switched():
                if self.stage is Stage.SWITCHING:
                    self._reset()
                return []
            case _:
                assert_never(event)

    def _seen(self, record: MigrationRecord | None) -> list[Effect]:
        if self.stage is Stage.SWITCHING:
            return []
        if record is None or record.role is Role.TARGET or not self._is_current(record):
            return self._undo()
        if record.phase in (Phase.NOT_STARTED, Phase.FAILED):
            return self._undo()
        if self.stage is Stage.IDLE:
            self.stage, self._run, self._url = Stage.CLOSING, record.run, record.target_url
            self._is_decided = record.phase is Phase.COMPLETED
            return [CloseGate()]
        if record.phase is not Phase.COMPLETED or self._is_decided:
            return []
        self._is_decided = True
        match self.stage:
            case Stage.READY:
                self.stage = Stage.SWITCHING
                return [Switch()]
            case Stage.REFUSING:  # too late: the attempt was decided first, without this process
                self.stage, self._keeps_sessions = Stage.PREPARING, False
                return [Prepare(self._url, False)]
            case _:
                return []

    def _is_current(self, record: MigrationRecord) -> bool:
        return self.stage is Stage.IDLE or record.run == self._run

    def _prepared(self) -> list[Effect]:
        if self.stage is not Stage.PREPARING:
            return []
        if not self._is_decided:
            self.stage = Stage.READY
            return [ReportReady(self._run)]
        if self._keeps_sessions:  # decided while it prepared: the keys came too late
            self._keeps_sessions = False
            return [Prepare(self._url, False)]
        self.stage = Stage.SWITCHING
        return [Switch()]

    def _failed(self, reason: str) -> list[Effect]:
        """After the decision there is only one way: the step is repeated, after a pause."""
        match self.stage:
            case Stage.CLOSING if self._is_decided:
                return []
            case Stage.PREPARING if self._is_decided:
                self._keeps_sessions = False
                return []
            case Stage.CLOSING | Stage.PREPARING | Stage.READY | Stage.REFUSING:
                self.stage = Stage.REFUSING
                return [AskFailed(self._run, reason)]
            case _:
                return []

    def _repeated(self) -> list[Effect]:
        match self.stage:
            case Stage.CLOSING:
                return [CloseGate()]
            case Stage.PREPARING:
                return [Prepare(self._url, self._keeps_sessions)]
            case _:
                return []

    def _undo(self) -> list[Effect]:
        if self.stage is Stage.IDLE:
            return []
        self._reset()
        return [Undo()]

    def _reset(self) -> None:
        self.stage, self._run, self._url = Stage.IDLE, "", ""
        self._is_decided, self._keeps_sessions = False, True
