"""Leader terms: how a candidate that holds the leader key becomes the leader. The state machine.

| step | why |
|---|---|
| 1. the key `…/leader` is claimed (`key_claim.py`), with term 0 | one candidate at a time |
| 2. the durable `…/term` is raised by compare-and-set | not a store revision, so that a move keeps it |
| 3. the term is written into `…/leader`, compare-and-set on the claim, same session | only a holder leads |

Step 3 succeeds only while the claim of step 1 stands, and the next claim comes after it, so terms of leaders grow. If a
candidate loses its claim between steps 2 and 3, no leader ever has that term; terms may have gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from anabranch.metadata.interface import ABSENT, Expected, Version
from anabranch.metadata.recipes.key_claim import KeyHeld, KeyLost, KeyWritten


@dataclass(frozen=True, slots=True)
class TermRecord:
    """The last assigned term and the claim it was assigned to."""

    term: int
    claim: str
    version: Version

    @staticmethod
    def encode(term: int, claim: str) -> bytes:
        return f"{term} {claim}".encode()

    @classmethod
    def decode(cls, stored: bytes, version: Version) -> TermRecord:
        term, _, claim = stored.decode().partition(" ")
        return cls(int(term), claim, version)


def encode_leader(term: int, value: bytes) -> bytes:
    return b"%d\n" % term + value


def decode_leader(value: bytes) -> tuple[int, bytes]:
    """The term (0: claimed, not leading yet) and the candidate's own value."""
    term, _, rest = value.partition(b"\n")
    return (int(term) if term.isdigit() else 0), rest


# events (beside those of the claim) -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TermRead:
    claim: str
    found: TermRecord | None


@dataclass(frozen=True, slots=True)
class TermRaised:
    claim: str
    term: int


@dataclass(frozen=True, slots=True)
class TermUncertain:
    """Another write was first, or the answer was lost: read again."""

    claim: str


@dataclass(frozen=True, slots=True)
class TermFailed:
    """The store did not answer a read."""

    claim: str


@dataclass(frozen=True, slots=True)
class TermPauseEnded:
    claim: str


Event = KeyHeld | KeyWritten | KeyLost | TermRead | TermRaised | TermUncertain | TermFailed | TermPauseEnded


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ReadTerm:
    claim: str
    sync: bool


@dataclass(frozen=True, slots=True)
class RaiseTerm:
    claim: str
    term: int
    expected: Expected


@dataclass(frozen=True, slots=True)
class PauseTerm:
    claim: str
    failures: int


@dataclass(frozen=True, slots=True)
class WriteLeader:
    """Write the term into the leader key, under the same claim."""

    claim: str
    value: bytes


@dataclass(frozen=True, slots=True)
class NotifyElected:
    claim: str
    term: int


@dataclass(frozen=True, slots=True)
class NotifyDeposed:
    term: int
    reason: str


Effect = ReadTerm | RaiseTerm | PauseTerm | WriteLeader | NotifyElected | NotifyDeposed


class TermMachine:
    """`candidate` is the value that this candidate stores in the leader key."""

    def __init__(self, candidate: bytes) -> None:
        self._candidate = candidate
        self._claim: str | None = None
        self._term = 0
        self._is_leading = False
        self._failures = 0

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, KeyHeld):
            self._claim, self._term, self._is_leading, self._failures = event.claim, 0, False, 0
            return [ReadTerm(event.claim, sync=False)]
        if event.claim != self._claim:
            return []  # of an earlier claim
        match event:
            case TermRead(claim, found):
                self._failures = 0
                if found is not None and found.claim == claim:
                    return self._raised(claim, found.term)
                term, expected = (1, ABSENT) if found is None else (found.term + 1, found.version)
                return [RaiseTerm(claim, term, expected)]
            case TermRaised(claim, term):
                return self._raised(claim, term)
            case TermUncertain(claim) | TermPauseEnded(claim):
                return [ReadTerm(claim, sync=True)]
            case TermFailed(claim):
                self._failures += 1
                return [PauseTerm(claim, self._failures)]
            case KeyWritten(claim, value):
                if self._is_leading or not self._term or value != encode_leader(self._term, self._candidate):
                    return []
                self._is_leading = True
                return [NotifyElected(claim, self._term)]
            case KeyLost(_, reason):
                term, was_leading = self._term, self._is_leading
                self._claim, self._term, self._is_leading = None, 0, False
                return [NotifyDeposed(term, reason)] if was_leading else []
            case _:
                assert_never(event)

    def _raised(self, claim: str, term: int) -> list[Effect]:
        if self._term:
            return []
        self._term = term
        return [WriteLeader(claim, encode_leader(term, self._candidate))]
