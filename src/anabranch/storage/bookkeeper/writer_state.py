"""State machine of the writer of one ledger: pending entries, acknowledgements, ensemble changes, close.

An entry is *confirmed* when the ack quorum of the present ensemble has it, every entry before it is confirmed, and the
metadata store names exactly this ensemble. Confirmed entries survive; the outcome of all others is unknown until the
ledger is closed.

    OPEN ──a replica failed, a spare exists──► CHANGING ──metadata saved──► OPEN
      │  └─a replica failed, no spare──► OPEN, with fewer replicas, while the ack quorum is healthy
      │ close()
      ▼
    CLOSING ──metadata saved──► CLOSED         any ──fenced, or the ack quorum is lost──► FAILED ──close()──► CLOSING

A fenced writer never touches the metadata again: the recovering process closes it. A writer that failed for
another reason may still close the ledger at its last confirmed entry, which discards the others.

While CHANGING, nothing is confirmed. The change begins at the first unconfirmed entry, so all pending entries belong to
the new segment. Acknowledgements of a bookie that was replaced do not count, and pending entries are sent again to its
replacement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from anabranch.storage.bookkeeper.entry_body import body_head
from anabranch.storage.bookkeeper.errors import LedgerFenced, NotEnoughBookies
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, write_set
from anabranch.storage.interface import Payload, StorageError


class WriterPhase(Enum):
    OPEN = "open"
    CHANGING = "changing"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SendAdd:
    """Store the entry on this bookie."""

    bookie: str
    entry: int
    head: bytes
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Confirm:
    """All entries up to this one may be confirmed, in order."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class FailAppends:
    """All entries from this one on have failed, in order. Their outcome is unknown until the ledger is closed."""

    first_entry: int
    error: StorageError


@dataclass(frozen=True, slots=True)
class SaveLedger:
    """Compare-and-set of the metadata. Answered by `saved`; by `stored` with a new read, if it lost or is in doubt."""

    metadata: LedgerMetadata
    expected_version: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The ledger is closed at this entry, for good."""

    last_entry: int
    length: int


@dataclass(frozen=True, slots=True)
class CloseFailed:
    """Another process recovers the ledger, or has closed it elsewhere. Only recovery can tell where it ends."""

    error: StorageError


WriterEffect = SendAdd | Confirm | FailAppends | SaveLedger | Closed | CloseFailed


@dataclass(slots=True)
class _Pending:
    head: bytes
    payload: Payload
    length: int
    acked: set[str] = field(default_factory=set)


class LedgerWriterState:
    def __init__(self, ledger: int, metadata: LedgerMetadata, version: int) -> None:
        """The node of the ledger exists, OPEN and with one segment. `version` is what the store answered."""
        assert metadata.state is LedgerState.OPEN
        self.ledger = ledger
        self.metadata = metadata
        self.phase = WriterPhase.OPEN
        self.next_entry = 0
        self.last_confirmed = -1
        self.confirmed_length = 0  # payload bytes up to the last confirmed entry
        self.length = 0  # payload bytes of all appended entries
        self.failure: StorageError | None = None
        self._version = version
        self._pending: dict[int, _Pending] = {}
        self._failed: dict[str, str] = {}  # members of the ensemble that failed, with the reason
        self._avoided: set[str] = set()  # bookies that failed once: other spares are preferred
        self._spares: tuple[str, ...] = ()
        self._saving: LedgerMetadata | None = None
        self._wants_close = False
        self._is_fenced = False

    @property
    def ensemble(self) -> tuple[str, ...]:
        """Bookies that get new entries, as the metadata store names them."""
        return self.metadata.segments[-1].ensemble

    @property
    def failed_bookies(self) -> frozenset[str]:
        return frozenset(self._failed)

    @property
    def pending(self) -> int:
        return len(self._pending)

    # -- calls of the owner

    def append(self, payload: Payload) -> list[WriterEffect]:
        """The entry gets the id `next_entry`. Raises if the ledger takes no more entries."""
        if self.failure is not None:
            raise self.failure
        assert not self._wants_close, "append after close"
        entry = self.next_entry
        self.next_entry += 1
        self.length += len(payload)
        head = body_head(self.ledger, entry, self.last_confirmed, self.length, payload)
        one = self._pending[entry] = _Pending(head, payload, self.length)
        return [
            SendAdd(bookie, entry, one.head, payload) for bookie in self._targets(entry) if bookie not in self._failed
        ]

    def close(self) -> list[WriterEffect]:
        """Close when everything that was appended is confirmed; after a failure, at the last confirmed entry."""
        if self._wants_close:
            return []
        self._wants_close = True
        return self._close_if_done()

    # -- events

    def added(self, bookie: str, entry: int) -> list[WriterEffect]:
        """The bookie has stored the entry."""
        one = self._pending.get(entry)
        if one is None or bookie not in self.ensemble:
            return []
        one.acked.add(bookie)
        return self._confirm()

    def fenced(self, reason: str) -> list[WriterEffect]:
        """A bookie refused an add because another process recovers the ledger, or because the ledger was deleted."""
        return self._fail(LedgerFenced(f"ledger {self.ledger}: {reason}"), is_fenced=True)

    def bookie_failed(self, bookie: str, reason: str, spares: Sequence[str]) -> list[WriterEffect]:
        """The connection broke, an answer is overdue, or the bookie refused an add. `spares`: bookies that can be
        written, best first."""
        self._spares = tuple(spares)
        if bookie not in self.ensemble or bookie in self._failed or self._has_ended:
            return []
        self._failed[bookie] = reason
        self._avoided.add(bookie)
        return self._repair()

    def bookies_changed(self, spares: Sequence[str]) -> list[WriterEffect]:
        """Bookies came or went. A ledger with failed replicas may use a spare now."""
        self._spares = tuple(spares)
        return self._repair() if self._failed and not self._has_ended else []

    def bookie_restored(self, bookie: str) -> list[WriterEffect]:
        """A failed member of the ensemble can be written again: it gets all pending entries."""
        if bookie not in self._failed or self.phase is not WriterPhase.OPEN:
            return []
        del self._failed[bookie]
        return self._send_pending((bookie,))

    def saved(self, version: int) -> list[WriterEffect]:
        """The compare-and-set has won."""
        assert self._saving is not None
        saved, self._saving, self._version = self._saving, None, version
        if self.phase is WriterPhase.CLOSING:
            self.metadata = saved
            self.phase = WriterPhase.CLOSED
            return [Closed(saved.last_entry, saved.length)]
        return self._changed(saved)

    def stored(self, found: LedgerMetadata | None, version: int) -> list[WriterEffect]:
        """The compare-and-set lost, or its outcome was unknown: this is stored now. None: the ledger was deleted."""
        assert self._saving is not None
        wanted, self._saving = self._saving, None
        if found is not None and _includes(found, wanted):  # our write was stored, and its answer was lost
            self._saving = found
            return self.saved(version)
        if found is not None and found.state is LedgerState.OPEN and found.segments[-1] == self.metadata.segments[-1]:
            self.metadata, self._version = found, version  # autorecovery has replaced bookies of earlier segments
            if self.phase is WriterPhase.CLOSING:
                return [self._save(found.closed(self.last_confirmed, self.confirmed_length))]
            self.phase = WriterPhase.OPEN
            return [*self._repair(), *self._confirm()]
        if found is None:
            reason = "it was deleted"
        elif found.is_closed:
            reason = f"another process has closed it at entry {found.last_entry}"
        else:
            reason = "another process recovers it"
        return self._fail(LedgerFenced(f"ledger {self.ledger}: {reason}"), is_fenced=True)

    # -- inside

    @property
    def _has_ended(self) -> bool:
        return self.phase in (WriterPhase.CLOSED, WriterPhase.FAILED, WriterPhase.CLOSING)

    def _targets(self, entry: int) -> tuple[str, ...]:
        return write_set(self.ensemble, entry, self.metadata.quorums.write)

    def _confirm(self) -> list[WriterEffect]:
        if self.phase is not WriterPhase.OPEN:
            return []
        before, ack_quorum = self.last_confirmed, self.metadata.quorums.ack
        while (one := self._pending.get(self.last_confirmed + 1)) is not None and len(one.acked) >= ack_quorum:
            self.last_confirmed += 1
            self.confirmed_length = one.length
            del self._pending[self.last_confirmed]
        if self.last_confirmed == before:
            return []
        return [Confirm(self.last_confirmed), *self._close_if_done()]

    def _repair(self) -> list[WriterEffect]:
        """Replace failed members as far as there are spares."""
        if self.phase is not WriterPhase.OPEN or not self._failed:
            return []
        unused = [one for one in self._spares if one not in self.ensemble]
        unused.sort(key=lambda one: one in self._avoided)  # stable: the order of the spares is kept otherwise
        ensemble = list(self.ensemble)
        for at, bookie in enumerate(self.ensemble):
            if bookie in self._failed and unused:
                ensemble[at] = unused.pop(0)
        if tuple(ensemble) == self.ensemble:
            return self._go_on_with_fewer()
        self.phase = WriterPhase.CHANGING
        return [self._save(self.metadata.with_ensemble(self.last_confirmed + 1, ensemble))]

    def _go_on_with_fewer(self) -> list[WriterEffect]:
        healthy, needed = len(self.ensemble) - len(self._failed), self.metadata.quorums.ack
        if healthy >= needed:
            return []
        reasons = ", ".join(f"{bookie} ({reason})" for bookie, reason in sorted(self._failed.items()))
        return self._fail(
            NotEnoughBookies(
                f"ledger {self.ledger}: {healthy} of {len(self.ensemble)} bookies can be written, {needed} are needed "
                f"and no spare is there; failed: {reasons}"
            )
        )

    def _save(self, metadata: LedgerMetadata) -> SaveLedger:
        assert self._saving is None
        self._saving = metadata
        return SaveLedger(metadata, self._version)

    def _changed(self, saved: LedgerMetadata) -> list[WriterEffect]:
        """The new ensemble is stored."""
        before, self.metadata = self.ensemble, saved
        self.phase = WriterPhase.OPEN
        added = [one for one in self.ensemble if one not in before]
        for bookie in before:
            if bookie not in self.ensemble:
                self._failed.pop(bookie, None)
        for one in self._pending.values():
            one.acked.intersection_update(self.ensemble)
        return [*self._send_pending(added), *self._repair(), *self._confirm(), *self._close_if_done()]

    def _send_pending(self, bookies: Iterable[str]) -> list[WriterEffect]:
        wanted = tuple(bookies)
        return [
            SendAdd(bookie, entry, one.head, one.payload)
            for entry, one in self._pending.items()
            for bookie in wanted
            if bookie in self._targets(entry) and bookie not in one.acked
        ]

    def _close_if_done(self) -> list[WriterEffect]:
        if not self._wants_close or self._saving is not None or self.phase in (WriterPhase.CLOSING, WriterPhase.CLOSED):
            return []
        if self._is_fenced:
            assert self.failure is not None
            return [CloseFailed(self.failure)]
        if self._pending:
            return []
        self.phase = WriterPhase.CLOSING
        return [self._save(self.metadata.closed(self.last_confirmed, self.confirmed_length))]

    def _fail(self, error: StorageError, *, is_fenced: bool = False) -> list[WriterEffect]:
        if self.phase is WriterPhase.CLOSED or self._is_fenced:
            return []
        was_closing = self._wants_close
        self._is_fenced = is_fenced
        effects: list[WriterEffect] = []
        if self.failure is None:
            effects = [FailAppends(self.last_confirmed + 1, error)] if self._pending else []
        self.failure = error
        self._pending.clear()
        self.phase = WriterPhase.FAILED
        if self._saving is not None and is_fenced:
            self._saving = None  # the answer is ignored: see `is_waiting`
        if was_closing:
            effects += self._close_if_done()
        return effects

    @property
    def is_waiting(self) -> bool:
        """The answer of a compare-and-set is expected. An answer at another time is ignored by the owner."""
        return self._saving is not None


def _includes(found: LedgerMetadata, wanted: LedgerMetadata) -> bool:
    """True if `found` is what this writer wanted to store. Autorecovery may have changed earlier segments since."""
    if found.state is not wanted.state or found.segments[-1] != wanted.segments[-1]:
        return False
    return (found.last_entry, found.length) == (wanted.last_entry, wanted.length)
