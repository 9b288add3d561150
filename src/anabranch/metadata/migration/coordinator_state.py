"""Order of one attempt, as the coordinator goes through it. Decides; never awaits.

    PRE_COPY ─► VERIFY_TREE ─► CLOSE_GATES ─► COPY_CHANGES ─► SWITCH (point of no return: the record is COMPLETED)
        └──────────────┴──────────────┴────────────────┴──► FAILED: the target is purged, the source is as before

Every phase is saved by compare-and-set before its work begins. A write of FAILED by any other process therefore stops
the attempt at the next phase at the latest, and COMPLETED is written over COPYING only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from anabranch.metadata.migration.record import Phase, SubPhase

ROUNDS_MAX = 20
CHANGED_FEW = 200
"""So few changed keys that the gates can be closed."""
SCANS_MAX = 3


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Began:
    """The lease is taken, the target is checked and tagged, the record is saved."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A scan or a round of changes is copied; `changed` keys have changed meanwhile."""

    changed: int
    is_watch_lost: bool = False


@dataclass(frozen=True, slots=True)
class Verified:
    """The whole tree is the same in the target."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The record is written."""


@dataclass(frozen=True, slots=True)
class Raced:
    """Another process wrote the record first."""

    reason: str


@dataclass(frozen=True, slots=True)
class ParticipantsSeen:
    """All live participants, and whether each is ready for this attempt."""

    ready: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class LastChangesCopied:
    """`missing`: ephemeral keys that no participant has created in the target."""

    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The time for the participants is over."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A step failed, the lease is lost, or an administrator aborts."""

    reason: str


Event = Began | Copied | Verified | Saved | Raced | ParticipantsSeen | LastChangesCopied | WaitEnded | Stopped


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CopyTree:
    """The answer is Copied."""

    is_repeated: bool = False  # purge the target first


@dataclass(frozen=True, slots=True)
class CopyChanges:
    """The answer is Copied."""


@dataclass(frozen=True, slots=True)
class VerifyTree:
    """The answer is Verified or Stopped."""


@dataclass(frozen=True, slots=True)
class Save:
    """The answer is Saved, Raced or Stopped."""

    phase: Phase
    sub_phase: SubPhase


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """Write FAILED unless the attempt has ended; there is no answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class WatchParticipants:
    """ParticipantsSeen now and after every change; WaitEnded after a while."""


@dataclass(frozen=True, slots=True)
class CopyLastChanges:
    """The answer is LastChangesCopied or Stopped; a `repeated` one looks for missing keys only."""

    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class MarkTarget:
    """Write into the target that it is complete."""


@dataclass(frozen=True, slots=True)
class End:
    """`error` is empty after COMPLETED; otherwise the target is purged."""

    error: str


Effect = (
    CopyTree | CopyChanges | VerifyTree | Save | SaveFailed | WatchParticipants | CopyLastChanges | MarkTarget | End
)


class CoordinatorMachine:
    def __init__(self) -> None:
        self.step = SubPhase.PRE_COPY
        self._is_saving = False
        self._rounds = 0
        self._scans = 1
        self._unready: list[str] = []
        self._missing: tuple[str, ...] = ()
        self._has_ended = False

    def handle(self, event: Event) -> list[Effect]:
        if self._has_ended:
            return []
        match event:
            case Began():
                return [CopyTree()]
            case Copied(changed, is_watch_lost):
                return self._copied(changed, is_watch_lost)
            case Verified():
                return [CopyChanges()]
            case Saved():
                self._is_saving = False
                return self._saved()
            case Raced(reason):
                return self._end(reason)
            case ParticipantsSeen(ready):
                if self.step is not SubPhase.CLOSE_GATES or self._is_saving:
                    return []
                self._unready = sorted(name for name, is_ready in ready.items() if not is_ready)
                return [] if self._unready else self._save(Phase.COPYING, SubPhase.COPY_CHANGES)
            case LastChangesCopied(missing):
                self._missing = missing
                return [CopyLastChanges(True)] if missing else self._save(Phase.COMPLETED, SubPhase.SWITCH)
            case WaitEnded():
                return self._late()
            case Stopped(reason):
                return [SaveFailed(reason), *self._end(reason)]
            case _:
                assert_never(event)

    def _copied(self, changed: int, is_watch_lost: bool) -> list[Effect]:
        if is_watch_lost:
            self._scans, self._rounds = self._scans + 1, 0
            if self._scans > SCANS_MAX:
                reason = "the watch of the source lost changes in every scan"
                return [SaveFailed(reason), *self._end(reason)]
            return [CopyTree(is_repeated=True)]
        self._rounds += 1
        if changed > CHANGED_FEW and self._rounds < ROUNDS_MAX:
            return [CopyChanges()]
        if self.step is SubPhase.PRE_COPY:
            self.step = SubPhase.VERIFY_TREE
            self._rounds = 0
            return [VerifyTree()]
        return self._save(Phase.PREPARATION, SubPhase.CLOSE_GATES)

    def _save(self, phase: Phase, step: SubPhase) -> list[Effect]:
        self.step, self._is_saving = step, True
        return [Save(phase, step)]

    def _saved(self) -> list[Effect]:
        match self.step:
            case SubPhase.CLOSE_GATES:
                return [WatchParticipants()]
            case SubPhase.COPY_CHANGES:
                return [CopyLastChanges()]
            case _:
                return [MarkTarget(), *self._end("")]

    def _late(self) -> list[Effect]:
        """Only while the writers are blocked; a save that is under way decides itself."""
        if self.step is SubPhase.CLOSE_GATES and not self._is_saving:
            reason = f"no answer in time from {', '.join(self._unready) or 'the participants'}"
        elif self.step is SubPhase.COPY_CHANGES and not self._is_saving:
            keys = ", ".join(self._missing[:5])
            reason = f"no process moved these ephemeral keys: {keys}" if keys else "the last changes took too long"
        else:
            return []
        return [SaveFailed(reason), *self._end(reason)]

    def _end(self, error: str) -> list[Effect]:
        self._has_ended = True
        return [End(error)]
