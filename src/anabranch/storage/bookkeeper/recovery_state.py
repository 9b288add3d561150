"""State machine that closes the ledger of another writer, which may still live: *recovery*.

    READING ──► CLAIMING ──► FENCING ──► MEASURING ──► COPYING ──► CLOSING ──► DONE

| phase | leaves it |
|---|---|
| READING | the ledger is closed: DONE. Otherwise IN_RECOVERY is stored, by CLAIMING |
| CLAIMING | stored: FENCING. Another was first: READING |
| FENCING | enough bookies are fenced: MEASURING |
| MEASURING | the length up to the last entry that is known to be confirmed is known: COPYING |
| COPYING | the end is found: CLOSING |
| CLOSING | stored: DONE. Another was first: READING |
| any after CLAIMING | too few answers: FAILED. Nothing was truncated, and recovery can begin again |

Invariants:

* Once fewer than the ack quorum of every write set can accept ordinary adds, the writer confirms nothing more.
* Entries up to the highest *last add confirmed* of the fenced bookies are final, and so are earlier segments.
* An entry behind it is the end only if so many replicas say explicitly that they lack it, that the writer cannot have
  confirmed it. Timeouts and I/O errors never count. Too few answers of either kind fail the recovery.
* Each entry found is stored again on an ack quorum before the next is looked for, so that another recovery finds it.
* The end may be used only after the last compare-and-set. Any number of recoveries may run at once; one of them wins,
  and the others adopt its end.

The replicas to read are those of the metadata as read. The ensemble that is written may change on the way; that change
is stored with the last compare-and-set only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from anabranch.storage.bookkeeper.entry_body import EntryBody, body_head
from anabranch.storage.bookkeeper.errors import NotEnoughBookies
from anabranch.storage.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState, write_set
from anabranch.storage.bookkeeper.writer_state import SaveLedger
from anabranch.storage.interface import LedgerNotFound, Payload, StorageError


class RecoveryPhase(Enum):
    READING = "reading"
    CLAIMING = "claiming"
    FENCING = "fencing"
    MEASURING = "measuring"
    COPYING = "copying"
    CLOSING = "closing"
    DONE = "done"
    FAILED = "failed"


class Absent(Enum):
    """What a bookie without the entry answered."""

    EXPLICIT = "it has no such entry or ledger"
    UNKNOWN = "no answer, an error, or a damaged entry"


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the node of the ledger. Answered by `stored`."""


@dataclass(frozen=True, slots=True)
class FenceRead:
    """Read the bookie's last entry with the fence flag. Answered by `fence_answered`."""

    bookie: str


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """Read this entry, with the fence flag if `fences`. Answered by `read_answered`."""

    bookie: str
    entry: int
    fences: bool


@dataclass(frozen=True, slots=True)
class RecoveryAdd:
    """Store the entry with the recovery flag. Answered by `added` or `bookie_failed`."""

    bookie: str
    entry: int
    head: bytes
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The ledger is closed, and this is its metadata."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    error: StorageError


RecoveryEffect = ReadMetadata | FenceRead | ReadEntry | RecoveryAdd | SaveLedger | Recovered | RecoveryFailed


class LedgerRecoveryState:
    def __init__(self, ledger: int) -> None:
        self.ledger = ledger
        self.phase = RecoveryPhase.READING
        self._metadata: LedgerMetadata | None = None  # as last read or stored; names the replicas to read
        self._target: LedgerMetadata | None = None  # what the last compare-and-set stores
        self._version = 0
        self._spares: tuple[str, ...] = ()
        self._answers: dict[str, EntryBody | Absent] = {}  # of the present entry, or of the fencing reads
        self._asked: tuple[str, ...] = ()  # bookies that were asked for the present entry
        self._acked: set[str] = set()
        self._failed: set[str] = set()  # bookies that could not store a recovered entry
        self._entry = 0  # looked for, or stored again
        self._found: EntryBody | None = None
        self._head = b""
        self._last = NO_ENTRY
        self._length = 0

    def start(self) -> list[RecoveryEffect]:
        return [ReadMetadata()]

    @property
    def healthy(self) -> tuple[str, ...]:
        """Bookies that are written now, without those that failed."""
        ensemble = () if self._target is None else self._target.segments[-1].ensemble
        return tuple(one for one in ensemble if one not in self._failed)

    @property
    def has_ended(self) -> bool:
        return self.phase in (RecoveryPhase.DONE, RecoveryPhase.FAILED)

    # -- events

    def stored(self, found: LedgerMetadata | None, version: int) -> list[RecoveryEffect]:
        """The metadata as it is stored now. None: there is no such ledger."""
        if found is None:
            return self._fail(LedgerNotFound(f"ledger {self.ledger} has no metadata: it was deleted"))
        self._version = version
        if found.is_closed:
            return self._done(found)
        if found.state is LedgerState.IN_RECOVERY:
            return self._fence(found)
        self._target = found.recovering()
        self.phase = RecoveryPhase.CLAIMING
        return [SaveLedger(self._target, version)]

    def saved(self, version: int) -> list[RecoveryEffect]:
        """The compare-and-set has won. If it lost, or if its outcome is unknown, `stored` follows instead."""
        assert self._target is not None
        self._version = version
        if self.phase is RecoveryPhase.CLOSING:
            return self._done(self._target)
        assert self.phase is RecoveryPhase.CLAIMING
        return self._fence(self._target)

    def fence_answered(self, bookie: str, answer: EntryBody | Absent) -> list[RecoveryEffect]:
        """`answer`: the last entry that the bookie has; its last-add-confirmed field counts, not its own id."""
        if self.phase is not RecoveryPhase.FENCING or bookie in self._answers:
            return []
        self._answers[bookie] = answer
        if self._is_fenced():
            return self._measure()
        if len(self._answers) == len(set(self._asked)):
            return self._fail(self._too_few("could be fenced"))
        return []

    def read_answered(self, bookie: str, entry: int, answer: EntryBody | Absent) -> list[RecoveryEffect]:
        if entry != self._entry or bookie in self._answers or bookie not in self._asked:
            return []
        if self.phase is RecoveryPhase.MEASURING:
            self._answers[bookie] = answer
            if not isinstance(answer, Absent):
                self._length = answer.length
                return self._look_for(self._last + 1)
            if len(self._answers) == len(self._asked):
                return self._fail(self._too_few(f"returned entry {entry}, which was confirmed"))
            return []
        if self.phase is not RecoveryPhase.COPYING or self._found is not None:
            return []
        self._answers[bookie] = answer
        if not isinstance(answer, Absent):
            return self._store_again(answer)
        quorums = self._replicas.quorums
        missing = sum(one is Absent.EXPLICIT for one in self._answers.values())
        if missing > quorums.write - quorums.ack:
            return self._close()
        if len(self._answers) == len(self._asked):
            return self._fail(self._too_few(f"said whether they have entry {entry}"))
        return []

    def added(self, bookie: str, entry: int) -> list[RecoveryEffect]:
        """The bookie has stored the recovered entry."""
        if not self._stores(entry) or bookie not in self._write_set():
            return []
        self._acked.add(bookie)
        self._failed.discard(bookie)
        return self._go_on_if_stored()

    def bookie_failed(self, bookie: str, entry: int, spares: Sequence[str]) -> list[RecoveryEffect]:
        """The bookie could not store the recovered entry. `spares`: bookies that can be written, best first."""
        if not self._stores(entry) or bookie not in self._write_set() or bookie in self._acked:
            return []
        assert self._target is not None
        self._failed.add(bookie)
        ensemble = self._target.segments[-1].ensemble
        spare = next((one for one in spares if one not in ensemble and one not in self._failed), None)
        if spare is None:
            healthy = sum(one not in self._failed for one in self._write_set())
            if healthy < self._replicas.quorums.ack:
                return self._fail(self._too_few(f"stored entry {entry} again"))
            return []
        self._target = self._target.with_ensemble(entry, [spare if one == bookie else one for one in ensemble])
        assert self._found is not None
        return [RecoveryAdd(spare, entry, self._head, self._found.payload)]

    # -- inside

    @property
    def _replicas(self) -> LedgerMetadata:
        assert self._metadata is not None
        return self._metadata

    def _fence(self, metadata: LedgerMetadata) -> list[RecoveryEffect]:
        self._metadata = self._target = metadata
        self.phase = RecoveryPhase.FENCING
        self._answers, self._failed = {}, set()
        self._asked = metadata.segments[-1].ensemble
        return [FenceRead(bookie) for bookie in dict.fromkeys(self._asked)]

    def _is_fenced(self) -> bool:
        """True if no write set of the last segment has an ack quorum of bookies that may accept ordinary adds."""
        ensemble, quorums = self._asked, self._replicas.quorums
        for at in range(len(ensemble)):
            window = write_set(ensemble, at, quorums.write)
            unfenced = sum(self._answers.get(one, Absent.UNKNOWN) is Absent.UNKNOWN for one in window)
            if unfenced >= quorums.ack:
                return False
        return True

    def _measure(self) -> list[RecoveryEffect]:
        """Everything up to the last entry that is known to be confirmed is final."""
        known = [one.last_confirmed for one in self._answers.values() if isinstance(one, EntryBody)]
        self._last = max([*known, self._replicas.segments[-1].first_entry - 1])
        self._length = 0
        if self._last == NO_ENTRY:
            return self._look_for(0)
        self.phase = RecoveryPhase.MEASURING
        return self._ask(self._last, fences=False)

    def _look_for(self, entry: int) -> list[RecoveryEffect]:
        self.phase = RecoveryPhase.COPYING
        return self._ask(entry, fences=True)

    def _ask(self, entry: int, *, fences: bool) -> list[RecoveryEffect]:
        self._entry, self._found, self._answers = entry, None, {}
        self._asked = write_set(self._replicas.segment_of(entry).ensemble, entry, self._replicas.quorums.write)
        return [ReadEntry(bookie, entry, fences) for bookie in self._asked]

    def _store_again(self, found: EntryBody) -> list[RecoveryEffect]:
        self._found, self._acked = found, set()
        length = self._length + len(found.payload)
        self._head = body_head(self.ledger, self._entry, self._last, length, found.payload)
        return [RecoveryAdd(bookie, self._entry, self._head, found.payload) for bookie in self._write_set()]

    def _stores(self, entry: int) -> bool:
        return self.phase is RecoveryPhase.COPYING and self._found is not None and entry == self._entry

    def _write_set(self) -> tuple[str, ...]:
        assert self._target is not None
        return write_set(self._target.segments[-1].ensemble, self._entry, self._target.quorums.write)

    def _go_on_if_stored(self) -> list[RecoveryEffect]:
        assert self._found is not None
        if sum(one in self._acked for one in self._write_set()) < self._replicas.quorums.ack:
            return []
        self._last, self._length = self._entry, self._length + len(self._found.payload)
        return self._look_for(self._entry + 1)

    def _close(self) -> list[RecoveryEffect]:
        assert self._target is not None
        self.phase = RecoveryPhase.CLOSING
        self._target = self._target.closed(self._last, self._length)
        return [SaveLedger(self._target, self._version)]

    def _done(self, metadata: LedgerMetadata) -> list[RecoveryEffect]:
        self.phase, self._metadata = RecoveryPhase.DONE, metadata
        return [Recovered(metadata)]

    def _too_few(self, what: str) -> NotEnoughBookies:
        answers = ", ".join(
            f"{bookie}: {one.value if isinstance(one, Absent) else 'answered'}"
            for bookie, one in sorted(self._answers.items())
        )
        return NotEnoughBookies(f"ledger {self.ledger} cannot be recovered now: too few bookies {what} ({answers})")

    def _fail(self, error: StorageError) -> list[RecoveryEffect]:
        self.phase = RecoveryPhase.FAILED
        return [RecoveryFailed(error)]
