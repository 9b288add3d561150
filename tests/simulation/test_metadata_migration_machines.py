"""The machines of a migration without stores: records, messages and faults are drawn from a seed.

The model is what the shells promise: the record changes by compare-and-set only; a process learns of it late, and not
of every value; its registration ends when it is killed or silent for too long, and a process whose registration ended
confirms nothing. At most one store takes confirmed writes at any time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from anabranch.metadata.migration.coordinator_state import (
    Began,
    CoordinatorMachine,
    Copied,
    CopyChanges,
    CopyLastChanges,
    CopyTree,
    End,
    LastChangesCopied,
    MarkTarget,
    ParticipantsSeen,
    Raced,
    Save,
    Saved,
    SaveFailed,
    Stopped,
    Verified,
    VerifyTree,
    WaitEnded,
    WatchParticipants,
)
from anabranch.metadata.migration.coordinator_state import Effect as CoordinatorEffect
from anabranch.metadata.migration.coordinator_state import Event as CoordinatorEvent
from anabranch.metadata.migration.participant_state import (
    AskFailed,
    CloseGate,
    Effect,
    Event,
    GateClosed,
    ParticipantMachine,
    Prepare,
    Prepared,
    RecordSeen,
    ReportReady,
    Retry,
    Stage,
    StepFailed,
    Switch,
    Switched,
    Undo,
)
from anabranch.metadata.migration.record import MigrationRecord, Phase, SubPhase
from tests.support.simulation.metadata_processes import seeds

STEPS = 400


@dataclass
class Participant:
    name: str
    machine: ParticipantMachine = field(default_factory=ParticipantMachine)
    inbox: list[Event] = field(default_factory=list)
    is_gate_open: bool = True
    has_moved: bool = False
    ready: str = ""  # as registered
    is_registered: bool = True
    is_vouched: bool = True
    is_stopped: bool = False


class Model:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.record: MigrationRecord | None = None
        self.version = 0
        self.attempts = 0
        self.machine: CoordinatorMachine | None = None
        self.known = 0  # version of the record that the coordinator wrote last
        self.events: list[CoordinatorEvent] = []
        self.is_lease_held = False
        self.participants = [Participant(f"p{number}") for number in range(self.chance.randrange(1, 5))]
        self.ended: list[str] = []
        self.is_copy_closed: bool = False  # the last changes are copied: a confirmed write to the source is now lost

    # the record -------------------------------------------------------------------------------------------------------
    def write(self, record: MigrationRecord) -> None:
        before = self.record
        assert before is None or before.phase is not Phase.COMPLETED, "COMPLETED is final"
        if record.phase is Phase.COMPLETED:
            assert before is not None and before.phase is Phase.COPYING and before.run == record.run
            for one in self.participants:
                if one.is_vouched:
                    assert one.ready == record.run, f"{one.name} was not waited for"
                    assert not one.is_gate_open, f"{one.name} still writes"
        self.record, self.version = record, self.version + 1

    def fail(self, run: str) -> None:
        record = self.record
        if record is not None and record.run == run and record.is_running:
            self.write(record.failed("x", 0))

    # the coordinator --------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        self.attempts += 1
        run = f"run{self.attempts}"
        self.write(
            MigrationRecord(Phase.NOT_STARTED, "to", "from", run=run, sub_phase=None).at(
                Phase.NOT_STARTED, SubPhase.PRE_COPY, 0
            )
        )
        self.known, self.is_lease_held, self.is_copy_closed = self.version, True, False
        self.machine = CoordinatorMachine()
        self.coordinate(Began())

    def coordinate(self, event: CoordinatorEvent) -> None:
        assert self.machine is not None
        for effect in self.machine.handle(event):
            self.perform(effect)

    def perform(self, effect: CoordinatorEffect) -> None:
        assert self.record is not None
        match effect:
            case CopyTree() | CopyChanges():
                self.events.append(Copied(self.chance.choice([0, 10, 1000]), self.chance.random() < 0.05))
            case VerifyTree():
                self.events.append(Verified())
            case Save(phase, sub_phase):
                if self.known != self.version:
                    self.events.append(Raced("another was first"))
                    return
                self.write(self.record.at(phase, sub_phase, 0))
                self.known = self.version
                self.events.append(Saved())
            case SaveFailed():
                self.fail(self.run)
            case WatchParticipants():
                self.events.append(self.seen())
            case CopyLastChanges():
                self.is_copy_closed = True
                self.events.append(LastChangesCopied(("/lock",) if self.chance.random() < 0.1 else ()))
            case End(error):
                self.ended.append(error)
                self.machine, self.is_lease_held = None, False
                self.events.clear()
            case MarkTarget():
                pass

    @property
    def run(self) -> str:
        return f"run{self.attempts}"

    def seen(self) -> ParticipantsSeen:
        return ParticipantsSeen({one.name: one.ready == self.run for one in self.participants if one.is_registered})

    # the participants -------------------------------------------------------------------------------------------------
    def step(self, one: Participant) -> None:
        if one.inbox and self.chance.random() < 0.7:
            event = one.inbox.pop(0)
        elif self.chance.random() < 0.2:
            event = Retry()
        else:
            event = RecordSeen(self.record)
            one.is_registered = True  # its step begins with the registration, before it reads
            one.is_vouched = one.is_vouched or self.is_free
        if isinstance(event, GateClosed | Prepared) and self.chance.random() < 0.08:
            event = StepFailed("no answer")
        if isinstance(event, GateClosed):
            one.is_gate_open = False
        for effect in one.machine.handle(event):
            self.act(one, effect)

    def act(self, one: Participant, effect: Effect) -> None:
        match effect:
            case CloseGate():
                one.inbox = [GateClosed()]
            case Prepare():
                one.inbox = [Prepared()]
            case ReportReady(run):
                assert not one.is_gate_open
                one.ready = run
            case AskFailed(run):
                self.fail(run)
            case Switch():
                assert self.record is not None and self.record.phase is Phase.COMPLETED
                one.has_moved, one.is_gate_open = True, True
                one.inbox = [Switched()]
            case Undo():
                has_completed = self.record is not None and self.record.phase is Phase.COMPLETED
                is_mine = self.record is not None and self.record.run == one.ready
                assert not (has_completed and is_mine), f"{one.name} goes back"
                one.ready, one.is_gate_open, one.inbox = "", True, []

    @property
    def is_free(self) -> bool:
        return self.record is None or self.record.phase in (Phase.NOT_STARTED, Phase.FAILED)

    def may_confirm(self, one: Participant) -> bool:
        """As the shell does: vouched for, or by the record as it is now."""
        return one.is_gate_open and not one.has_moved and (one.is_vouched or self.is_free)

    # the run ----------------------------------------------------------------------------------------------------------
    def happen(self) -> None:
        chance = self.chance
        match chance.randrange(10):
            case 0 | 1 | 2 | 3:
                one = chance.choice(self.participants)
                if not one.is_stopped and not one.has_moved:
                    self.step(one)
            case 4 | 5 | 6 if self.machine is not None and self.events:
                self.coordinate(self.events.pop(0))
            case 4 | 5 | 6 if self.machine is not None:
                self.coordinate(self.seen())
            case 7 if self.machine is not None and chance.random() < 0.15:
                self.coordinate(WaitEnded() if chance.random() < 0.5 else Stopped("aborted"))
            case 7 if self.machine is not None and chance.random() < 0.05:
                self.machine, self.is_lease_held = None, False  # killed; the participants notice
                self.events.clear()
            case 8:
                one = chance.choice(self.participants)
                one.is_stopped = not one.is_stopped
            case 9:
                for one in self.participants:
                    if one.is_stopped and chance.random() < 0.3:
                        one.is_registered = one.is_vouched = False
                if not self.is_lease_held:
                    self.fail(self.run)
            case _:
                pass

    def check(self) -> None:
        record = self.record
        if record is None or record.phase is not Phase.COMPLETED:
            assert not any(one.has_moved for one in self.participants), "moved without a decision"
        is_decided = record is not None and record.phase is Phase.COMPLETED
        if is_decided or (self.is_copy_closed and record is not None and record.phase is Phase.COPYING):
            for one in self.participants:
                assert not self.may_confirm(one), f"{one.name} confirms writes that the target does not get"

    def settle(self) -> None:
        for one in self.participants:
            one.is_stopped = False
        for _ in range(STEPS):
            if self.machine is not None:
                self.coordinate(self.events.pop(0) if self.events else self.seen())
            for one in self.participants:
                if not one.has_moved:
                    self.step(one)
            self.check()
            if self.machine is None and not self.is_lease_held:
                self.fail(self.run)


def play(seed: int) -> Phase | None:
    model = Model(seed)
    for _ in range(STEPS):
        is_over = model.record is None or model.record.phase is Phase.FAILED
        if model.machine is None and is_over and model.chance.random() < 0.2:
            model.begin()
        model.happen()
        model.check()
    model.settle()
    phase = None if model.record is None else model.record.phase
    for one in model.participants:
        assert one.is_gate_open, f"{one.name} stays closed after {phase}"
        assert one.machine.stage is Stage.IDLE or one.has_moved
        assert one.has_moved == (phase is Phase.COMPLETED), f"{one.name} after {phase}"
    return phase


@pytest.mark.parametrize("span", seeds(2_400, 8))
def test_all_processes_move_or_none_and_no_gate_stays_closed(span: range) -> None:
    phases = set()
    for seed in span:
        try:
            phases.add(play(seed))
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
    assert {Phase.COMPLETED, Phase.FAILED} <= phases, "the seeds reach both ends"
