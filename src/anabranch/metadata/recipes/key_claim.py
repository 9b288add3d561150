"""Claim of one ephemeral key: the state machine under elections and registrations. No await, clock or randomness.

It compares the wanted with the known state and requests one step at a time, so an answer always meets the state in
which it was requested. A written value begins with a *claim*, `ticket.session.turn`, which is never used for another
holding of the key: after a write without an answer, reading the key decides whether it happened. A key with an earlier
claim of the same ticket is a remnant (of a lost session, or of a late write) and may be replaced.

Every write is a compare-and-set, so a request delayed in the network can at worst restore a claim that was given up.
The machine keeps reading in that case, and deletes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from anabranch.metadata.interface import ABSENT, Expected, Version


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """The stored value of the key, with the claim of its holder."""

    claim: str
    value: bytes
    version: Version


def encode_claim(claim: str, value: bytes) -> bytes:
    return claim.encode() + b"\n" + value


def decode_claim(stored: bytes, version: Version) -> StoredClaim:
    """A value without a claim (put by hand) has an empty claim, so it belongs to another holder."""
    head, newline, value = stored.partition(b"\n")
    return StoredClaim(head.decode(errors="replace"), value, version) if newline else StoredClaim("", stored, version)


def ticket_of(claim: str) -> str:
    return claim.rsplit(".", 2)[0]


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SessionBegan:
    """A session was opened; its number is unique for the ticket."""

    number: int


@dataclass(frozen=True, slots=True)
class SessionOver:
    reason: str


@dataclass(frozen=True, slots=True)
class Acquire:
    """Hold the key with this value; if it is held already, change the value."""

    value: bytes


@dataclass(frozen=True, slots=True)
class ChangeValue:
    """Another value for the present holding; the next one begins with the acquired value again."""

    claim: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Release:
    """Release the key, or stop trying to hold it."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The key may have changed."""


@dataclass(frozen=True, slots=True)
class KeyRead:
    """Answer to ReadKey."""

    found: StoredClaim | None


@dataclass(frozen=True, slots=True)
class Wrote:
    """Answer to Put."""

    version: Version


@dataclass(frozen=True, slots=True)
class Deleted:
    """Answer to Delete, also if the key was missing."""


@dataclass(frozen=True, slots=True)
class Raced:
    """Answer to Put or Delete: another write was first, nothing was written."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Answer to Put or Delete: it may have been applied, or may still be."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer to any request: it was refused or not sent, or a read was not answered."""


@dataclass(frozen=True, slots=True)
class PauseEnded:
    """The pause with this number is over."""

    number: int


Event = (
    SessionBegan
    | SessionOver
    | Acquire
    | ChangeValue
    | Release
    | Changed
    | KeyRead
    | Wrote
    | Deleted
    | Raced
    | Uncertain
    | Failed
    | PauseEnded
)


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ReadKey:
    """Read the key; with `sync` the read sees every write confirmed before."""

    sync: bool


@dataclass(frozen=True, slots=True)
class Put:
    """Write the key with the present session."""

    claim: str
    value: bytes
    expected: Expected


@dataclass(frozen=True, slots=True)
class Delete:
    version: Version


class PauseKind(StrEnum):
    SCATTER = "scatter"  # many may want the key: spread their attempts
    RETRY = "retry"  # the store failed


@dataclass(frozen=True, slots=True)
class Pause:
    number: int
    kind: PauseKind
    failures: int


@dataclass(frozen=True, slots=True)
class KeyHeld:
    """The key is held from now on. Sent once per holding, before any KeyWritten of it."""

    claim: str


@dataclass(frozen=True, slots=True)
class KeyWritten:
    """The key is held and has the wanted value."""

    claim: str
    value: bytes


@dataclass(frozen=True, slots=True)
class KeyLost:
    claim: str
    reason: str


@dataclass(frozen=True, slots=True)
class KeyReleased:
    """Not wanted, and not held as far as known."""


Effect = ReadKey | Put | Delete | Pause | KeyHeld | KeyWritten | KeyLost | KeyReleased


class _Unknown:
    """The stored value is not known."""


_UNKNOWN = _Unknown()


class ClaimMachine:
    """`is_contended`: others may want the key as well, so a missing key is claimed after a random pause."""

    def __init__(self, ticket: str, *, is_contended: bool) -> None:
        self._ticket = ticket
        self._is_contended = is_contended
        self._session: int | None = None
        self._turn = 1
        self._wanted: bytes | None = None
        self._amended: bytes | None = None
        self._known: StoredClaim | _Unknown | None = _UNKNOWN
        self._asked: ReadKey | Put | Delete | None = None
        self._is_dirty = False  # the key may have changed during a request
        self._is_write_uncertain = False  # a write of this session may still be applied
        self._must_sync = False
        self._pause: Pause | None = None
        self._pauses = 0
        self._reads_failed = self._writes_failed = 0  # in a row
        self._may_try = False
        self._held: str | None = None
        self._written: bytes | None = None
        self._is_release_reported = True

    @property
    def held(self) -> str | None:
        """The claim under which the key is held."""
        return self._held

    @property
    def is_free(self) -> bool:
        """Not wanted, and no claim of this ticket is stored as far as known."""
        return self._wanted is None and self._is_release_reported

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case SessionBegan(number):
                self._session, self._known = number, _UNKNOWN
                self._stop_pause()
            case SessionOver(reason):
                self._session, self._known, self._is_write_uncertain = None, _UNKNOWN, False
                effects += self._lose(reason)
                self._stop_pause()
            case Acquire(value):
                self._wanted, self._is_release_reported = value, False
            case ChangeValue(claim, value):
                if claim == self._held:
                    self._amended = value
            case Release():
                if self._wanted is not None:
                    self._wanted = None
                    effects += self._lose("released")
                    self._stop_pause()
            case Changed():
                self._is_dirty = True
            case PauseEnded(number):
                if self._pause is None or self._pause.number != number:
                    return []
                self._may_try = self._pause.kind is PauseKind.SCATTER
                self._pause = None
            case KeyRead() | Wrote() | Deleted() | Raced() | Uncertain() | Failed():
                effects += self._answered(event)
            case _:
                assert_never(event)
        return effects + self._next()

    def _answered(self, event: KeyRead | Wrote | Deleted | Raced | Uncertain | Failed) -> list[Effect]:
        asked, self._asked = self._asked, None
        assert asked is not None, "an answer without a request"
        self._known = _UNKNOWN
        if isinstance(event, Failed | Uncertain):
            self._must_sync = True
            self._is_write_uncertain = self._is_write_uncertain or isinstance(asked, Put)
            if isinstance(asked, ReadKey):
                self._reads_failed += 1
            else:
                self._writes_failed += 1
            if isinstance(event, Uncertain) and self._writes_failed == 1:
                return []  # read at once whether it was applied
            self._pause = self._new_pause(PauseKind.RETRY)
            return [self._pause]
        if isinstance(asked, ReadKey):
            self._reads_failed = 0
        else:
            self._writes_failed = 0
        match event, asked:
            case KeyRead(found), ReadKey():
                self._known, self._must_sync = found, False
            case Wrote(version), Put(claim, value, _):
                self._known = StoredClaim(claim, value, version)
            case Deleted(), Delete():
                self._known = None
            case Raced(), Put() | Delete():
                pass
            case _:
                raise AssertionError(f"{event} does not answer {asked}")
        return []

    def _next(self) -> list[Effect]:
        """The next step from the known state; none while an answer or a pause is awaited."""
        effects: list[Effect] = []
        if self._asked is not None or (self._pause is not None and self._pause.kind is PauseKind.RETRY):
            return effects
        if self._session is None:
            if self._wanted is None:
                effects += self._report_release()
            return effects
        known, mine = self._known, self._claim()
        if isinstance(known, StoredClaim) and known.claim == mine and self._wanted is not None:
            effects += self._on_held(known)
        if self._is_dirty:
            self._is_dirty = False
            known = self._known = _UNKNOWN
            self._stop_pause()
            if self._is_write_uncertain:
                self._is_release_reported = False
        if isinstance(known, _Unknown):
            if self._wanted is None and self._is_release_reported:
                return effects
            return [*effects, self._ask(ReadKey(sync=self._held is not None or self._must_sync))]
        value = self._value()
        if value is None:
            if known is not None and ticket_of(known.claim) == self._ticket:
                return [*effects, self._ask(Delete(known.version))]
            return effects + self._report_release()
        if self._held is not None and (known is None or known.claim != self._held):
            effects += self._lose("deleted" if known is None else "taken")
            assert self._wanted is not None
            mine, value = self._claim(), self._wanted
        if known is None:
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
        if ticket_of(known.claim) == self._ticket:  # a remnant of this ticket
            return [*effects, self._ask(Put(mine, value, known.version))]
        return effects  # held by another

    def _on_held(self, known: StoredClaim) -> list[Effect]:
        effects: list[Effect] = []
        if self._held is None:
            self._held, self._written = known.claim, None
            effects.append(KeyHeld(known.claim))
        if known.value == self._value() and known.value != self._written:
            self._written = known.value
            effects.append(KeyWritten(known.claim, known.value))
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
        return [KeyLost(lost, reason)] if lost is not None else []

    def _report_release(self) -> list[Effect]:
        if self._is_release_reported:
            return []
        self._is_release_reported = True
        return [KeyReleased()]

    def _ask(self, effect: ReadKey | Put | Delete) -> ReadKey | Put | Delete:
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
