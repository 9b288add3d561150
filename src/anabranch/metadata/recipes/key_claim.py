"""Holding one ephemeral key: the machine under locks, elections and registrations. No await, clock or chance here.

It compares what is wanted with what is known and asks for one thing at a time, so an answer always meets the state it
was asked in. What it writes begins with a *claim*, `ticket.session.turn`, that is never written twice for another
holding: after a write whose answer was lost, reading the key again decides whether it happened. A key with an earlier
claim of the same ticket is a leftover of ours (of a lost session, or of a write that came late) and may be replaced.

Every write is a compare-and-set, so a request that lingers in the network can at worst bring back a claim of ours that
we have given up. The machine keeps looking in that case, and deletes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from anabranch.metadata.interface import ABSENT, Expected, Version


@dataclass(frozen=True, slots=True)
class Holding:
    """What is stored under the key: whose it is and the value."""

    claim: str
    value: bytes
    version: Version


def encode_claim(claim: str, value: bytes) -> bytes:
    return claim.encode() + b"\n" + value


def decode_claim(stored: bytes, version: Version) -> Holding:
    """Anything without a claim (put by hand) is somebody else's: it has an empty claim."""
    head, newline, value = stored.partition(b"\n")
    return Holding(head.decode(errors="replace"), value, version) if newline else Holding("", stored, version)


def ticket_of(claim: str) -> str:
    return claim.rsplit(".", 2)[0]


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SessionBegan:
    """A session is up; its number never comes twice with the same ticket."""

    number: int


@dataclass(frozen=True, slots=True)
class SessionOver:
    reason: str


@dataclass(frozen=True, slots=True)
class Want:
    """Hold the key with this value; while it is held: change the value."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Amend:
    """Another value for the holding of now; the next one begins with the wanted value again."""

    claim: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Unwant:
    """Give the key up, or stop trying."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A hint that the key changed."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Answer to Look."""

    found: Holding | None


@dataclass(frozen=True, slots=True)
class Wrote:
    """Answer to Put."""

    version: Version


@dataclass(frozen=True, slots=True)
class Deleted:
    """Answer to Delete; also when there was nothing any more."""


@dataclass(frozen=True, slots=True)
class Raced:
    """Answer to Put or Delete: somebody was first, nothing was written."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Answer to Put or Delete: it may have happened, now or later."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer to anything: it was refused or not sent, or a read was not answered."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The pause with this number is over."""

    number: int


Event = (
    SessionBegan
    | SessionOver
    | Want
    | Amend
    | Unwant
    | Changed
    | Seen
    | Wrote
    | Deleted
    | Raced
    | Unknown
    | Failed
    | Paused
)


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Look:
    """Read the key; with `sync` nothing that was confirmed before may be missed."""

    sync: bool


@dataclass(frozen=True, slots=True)
class Put:
    """Write the key with the session of now."""

    claim: str
    value: bytes
    expected: Expected


@dataclass(frozen=True, slots=True)
class Delete:
    version: Version


class PauseKind(StrEnum):
    SCATTER = "scatter"  # many may want the same: do not all try at once
    RETRY = "retry"  # the store failed


@dataclass(frozen=True, slots=True)
class Pause:
    number: int
    kind: PauseKind
    failures: int


@dataclass(frozen=True, slots=True)
class TellHeld:
    """The key is ours from now on. Sent once per holding, before any TellWritten of it."""

    claim: str


@dataclass(frozen=True, slots=True)
class TellWritten:
    """The key is ours and has the wanted value."""

    claim: str
    value: bytes


@dataclass(frozen=True, slots=True)
class TellLost:
    claim: str
    reason: str


@dataclass(frozen=True, slots=True)
class TellFree:
    """Not wanted, and as far as we can see not ours any more."""


@dataclass(frozen=True, slots=True)
class TellOther:
    """Wanted, but somebody else has it."""

    holding: Holding


Effect = Look | Put | Delete | Pause | TellHeld | TellWritten | TellLost | TellFree | TellOther


class _Unseen:
    """We do not know what is stored."""


_UNSEEN = _Unseen()


class ClaimMachine:
    """`is_contended`: others may want the key as well, so an empty key is tried after a scattering pause."""

    def __init__(self, ticket: str, *, is_contended: bool) -> None:
        self._ticket = ticket
        self._is_contended = is_contended
        self._session: int | None = None
        self._turn = 1
        self._wanted: bytes | None = None
        self._amended: bytes | None = None
        self._known: Holding | _Unseen | None = _UNSEEN
        self._asked: Look | Put | Delete | None = None
        self._is_dirty = False  # a change was hinted at while we were asking
        self._is_doubtful = False  # a write of this session may still come
        self._must_sync = False
        self._pause: Pause | None = None
        self._pauses = 0
        self._reads_failed = self._writes_failed = 0  # in a row
        self._may_try = False
        self._held: str | None = None
        self._written: bytes | None = None
        self._is_free_told = True
        self._other_told: str | None = None

    @property
    def held(self) -> str | None:
        """The claim we hold the key with."""
        return self._held

    @property
    def is_free(self) -> bool:
        """Not wanted, and nothing of ours is left as far as we can see."""
        return self._wanted is None and self._is_free_told

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case SessionBegan(number):
                self._session, self._known = number, _UNSEEN
                self._stop_pause()
            case SessionOver(reason):
                self._session, self._known, self._is_doubtful = None, _UNSEEN, False
                effects += self._lose(reason)
                self._stop_pause()
            case Want(value):
                self._wanted, self._is_free_told = value, False
            case Amend(claim, value):
                if claim == self._held:
                    self._amended = value
            case Unwant():
                if self._wanted is not None:
                    self._wanted = None
                    effects += self._lose("released")
                    self._stop_pause()
            case Changed():
                self._is_dirty = True
            case Paused(number):
                if self._pause is None or self._pause.number != number:
                    return []
                self._may_try = self._pause.kind is PauseKind.SCATTER
                self._pause = None
            case Seen() | Wrote() | Deleted() | Raced() | Unknown() | Failed():
                effects += self._answered(event)
            case _:
                assert_never(event)
        return effects + self._next()

    def _answered(self, event: Seen | Wrote | Deleted | Raced | Unknown | Failed) -> list[Effect]:
        asked, self._asked = self._asked, None
        assert asked is not None, "an answer nobody asked for"
        self._known = _UNSEEN
        if isinstance(event, Failed | Unknown):
            self._must_sync = True
            self._is_doubtful = self._is_doubtful or isinstance(asked, Put)
            if isinstance(asked, Look):
                self._reads_failed += 1
            else:
                self._writes_failed += 1
            if isinstance(event, Unknown) and self._writes_failed == 1:
                return []  # see at once what became of it
            self._pause = self._new_pause(PauseKind.RETRY)
            return [self._pause]
        if isinstance(asked, Look):
            self._reads_failed = 0
        else:
            self._writes_failed = 0
        match event, asked:
            case Seen(found), Look():
                self._known, self._must_sync = found, False
            case Wrote(version), Put(claim, value, _):
                self._known = Holding(claim, value, version)
            case Deleted(), Delete():
                self._known = None
            case Raced(), Put() | Delete():
                pass
            case _:
                raise AssertionError(f"{event} does not answer {asked}")
        return []

    def _next(self) -> list[Effect]:
        """What follows from what is known; nothing while an answer or a pause is awaited."""
        effects: list[Effect] = []
        if self._asked is not None or (self._pause is not None and self._pause.kind is PauseKind.RETRY):
            return effects
        if self._session is None:
            if self._wanted is None:
                effects += self._tell_free()
            return effects
        known, mine = self._known, self._claim()
        if isinstance(known, Holding) and known.claim == mine and self._wanted is not None:
            effects += self._note_mine(known)
        if self._is_dirty:
            self._is_dirty = False
            known = self._known = _UNSEEN
            self._stop_pause()
            if self._is_doubtful:
                self._is_free_told = False
        if isinstance(known, _Unseen):
            if self._wanted is None and self._is_free_told:
                return effects
            return [*effects, self._ask(Look(sync=self._held is not None or self._must_sync))]
        value = self._value()
        if value is None:
            if known is not None and ticket_of(known.claim) == self._ticket:
                return [*effects, self._ask(Delete(known.version))]
            return effects + self._tell_free()
        if self._held is not None and (known is None or known.claim != self._held):
            effects += self._lose("deleted" if known is None else "taken")
            assert self._wanted is not None
            mine, value = self._claim(), self._wanted
        if known is None:
            self._other_told = None
            if self._is_contended and not self._may_try:
                if self._pause is None:
                    self._pause = self._new_pause(PauseKind.SCATTER)
                    effects.append(self._pause)
                return effects
            self._may_try = False
            return [*effects, self._ask(Put(mine, value, ABSENT))]
        self._stop_pause()
        if known.claim == mine:
            if known.value != value:
                return [*effects, self._ask(Put(mine, value, known.version))]
            return effects
        if ticket_of(known.claim) == self._ticket:  # our own leftover
            return [*effects, self._ask(Put(mine, value, known.version))]
        if self._other_told != known.claim:
            self._other_told = known.claim
            effects.append(TellOther(known))
        return effects

    def _note_mine(self, known: Holding) -> list[Effect]:
        effects: list[Effect] = []
        self._other_told = None
        if self._held is None:
            self._held, self._written = known.claim, None
            effects.append(TellHeld(known.claim))
        if known.value == self._value() and known.value != self._written:
            self._written = known.value
            effects.append(TellWritten(known.claim, known.value))
        return effects

    def _value(self) -> bytes | None:
        return self._wanted if self._amended is None else self._amended

    def _claim(self) -> str:
        return f"{self._ticket}.{self._session}.{self._turn}"

    def _lose(self, reason: str) -> list[Effect]:
        """The holding is over; a later one has another claim, whatever becomes of this one's writes."""
        self._turn += 1
        self._amended = self._written = None
        self._may_try = False
        lost, self._held = self._held, None
        return [TellLost(lost, reason)] if lost is not None else []

    def _tell_free(self) -> list[Effect]:
        if self._is_free_told:
            return []
        self._is_free_told = True
        return [TellFree()]

    def _ask(self, effect: Look | Put | Delete) -> Look | Put | Delete:
        self._asked = effect
        if isinstance(effect, Put):
            self._stop_pause()
        return effect

    def _new_pause(self, kind: PauseKind) -> Pause:
        self._pauses += 1
        return Pause(self._pauses, kind, self._reads_failed + self._writes_failed)

    def _stop_pause(self) -> None:
        self._pause = None
        self._may_try = False
