"""The storage port: ledgers that are appended to, read, summarized and deleted.

A *ledger* is an append-only sequence of entries 0, 1, 2 … under an id that is never used twice. One process writes it,
once. After a crash or a clean close it is *sealed*: its length is final, and the topic continues in a new ledger.
Entries are opaque: storage never looks inside a payload, except through the `publish_time_of` function that it is
given.

Appending uses callbacks, because a durable group holds thousands of entries and one future per entry would cost more
than the entry. The caller's context travels with each entry and is returned with the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from anabranch.model.errors import Error
from anabranch.model.position import Position

Payload = bytes | memoryview | bytearray


class StorageError(Error):
    code = "storage"


class StorageFull(StorageError):
    """The device is full. Existing data can be read and acknowledged; appends are accepted again once there is room."""

    code = "storage-full"
    retryable = True


class Fenced(StorageError):
    """Another process has taken over this broker's log, so nothing may be confirmed any more."""

    code = "fenced"


class Superseded(StorageError):
    """A broker with a later ownership epoch has already opened this topic; the caller has lost it without noticing."""

    code = "superseded"
    retryable = True


class LedgerNotFound(StorageError):
    code = "ledger-not-found"


class CorruptEntry(StorageError):
    """Checksum mismatch. The entries before and after it stay readable."""

    code = "corrupt-entry"

    def __init__(self, path: str, offset: int, ledger: int, entry: int) -> None:
        super().__init__(f"checksum mismatch in {path} at offset {offset} (ledger {ledger}, entry {entry})")
        self.path, self.offset, self.ledger, self.entry = path, offset, ledger, entry


class StoredEntry(NamedTuple):
    """One stored entry. The same object travels from disk or memory to the wire.

    `payload` may be a view into a larger block; copy it to keep it for long.
    """

    position: Position
    messages: int
    payload: Payload
    left: tuple[int, ...] | None = None  # bit set of the messages of a batch that compaction kept; None: all


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """Final totals of a sealed ledger, or current totals of an open one."""

    ledger_id: int
    entries: int
    messages: int
    bytes: int  # payload bytes, headers not counted
    file_bytes: int  # end of the valid part of the file
    last_publish_ms: int  # publish time of the last entry; 0 if unknown or empty


class AppendSink(Protocol):
    """Receives the outcome of all appends of one ledger, on the event loop and in append order."""

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        """Entries of this ledger in a durable group, with the context of each."""

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None: ...


class LedgerWriter(Protocol):
    """The only writer of one open ledger."""

    ledger_id: int
    next_entry_id: int  # id of the next append
    durable_entry_id: int  # last entry confirmed durable; -1 if none
    durable_bytes: int  # payload bytes and messages up to that entry
    durable_messages: int
    bytes: int  # payload bytes appended (durable or not)
    messages: int

    def append(self, payload: Payload, messages: int, sink: AppendSink, context: Any) -> int:
        """Queue one entry for the next group.

        The entry id is fixed now; the sink is notified when the entry is durable.

        Raises StorageFull, Fenced or StorageError at once when appends are refused. After a failed append, all later
        entries of the ledger fail too, so there are no holes: the owner seals this ledger and continues in a new one.
        """

    def append_run(
        self, payloads: Sequence[Payload], messages: Sequence[int], sink: AppendSink, contexts: Sequence[Any]
    ) -> int:
        """`append` of several entries at lower cost.

        Queues all of them, or none and raises. Returns the first entry id.
        """

    async def seal(self) -> LedgerSummary:
        """Wait for queued appends, make the length final, and end the use of this writer."""


class StoreListener(Protocol):
    """Receives the events of one ledger store, on the event loop."""

    def may_confirm(self) -> bool:
        """Whether a durable group may be confirmed now; if not, the store asks again shortly.

        In a cluster this is False while the broker's session is in doubt. Raises Fenced once the session has ended.
        """

    def on_group_end(self) -> None:
        """All sinks of a group were notified. The broker flushes receipts and dispatches now."""

    def on_batches(self, count: int) -> None:
        """A group with this many batches became durable."""

    def on_fenced(self) -> None:
        """Another process has taken over; called once."""

    def on_room(self) -> None:
        """A full device has room again, and appends are accepted."""


class IgnoringListener:
    """A `StoreListener` that confirms everything and ignores all events. Base class of those that need only some."""

    def may_confirm(self) -> bool:
        return True

    def on_group_end(self) -> None: ...

    def on_batches(self, count: int) -> None: ...

    def on_fenced(self) -> None: ...

    def on_room(self) -> None: ...


class LedgerAllocator(Protocol):
    async def allocate(self, above: int = 0) -> int:
        """Id of a new ledger, greater than `above`: ids only grow within a topic.

        Where brokers share the storage, the ledger exists when this returns. So the order is: allocate, announce the id
        in the topic record, append. A ledger that is announced can then always be sealed by the next owner.
        """


class LedgerStore(Protocol):
    """All ledgers that one broker can reach on its volume."""

    def start(self, listener: StoreListener) -> None:
        """Send events to this listener from now on; without one, groups are confirmed and events are dropped."""

    def create(self, ledger_id: int) -> LedgerWriter:
        """The writer of a new ledger, whose id this process has allocated; no I/O until its first append."""

    async def summarize(self, ledger_id: int) -> LedgerSummary:
        """Totals of a ledger that is no longer written, found by reading its tail only. A torn end does not count.

        Where brokers share the storage, this seals the ledger first, so that its former owner can write no more. A
        ledger that does not exist is empty; that is no error.
        """

    def read_cached(self, ledger_id: int, first: int, entries_max: int, bytes_max: int) -> list[StoredEntry] | None:
        """Durable entries from memory, without waiting. None if `first` is not in memory, [] if not durable yet."""

    def read_resident(
        self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[StoredEntry] | None:
        """`read` without waiting: works if `first` is where the last read ended and the file is in the page cache, else
        None.
        """

    async def read(self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Entries `first <= id < end`, within both bounds, but at least one if it exists and is sound.

        Sequential calls are cheap, because the store remembers where the last read of this ledger ended. Raises
        CorruptEntry only if the *first* requested entry is damaged; otherwise the result ends before the damaged one.
        """

    async def messages_before(self, ledger_id: int, entry_id: int) -> int:
        """Number of messages in the entries 0 … entry_id-1, from the sparse index and at most one index step of
        headers.
        """

    async def first_entry_at(self, ledger_id: int, publish_ms: int, end: int) -> int:
        """First entry whose publish time is >= publish_ms, or `end`."""

    def evict(self, ledger_id: int) -> None:
        """The topic of a sealed ledger is closed: its entries need not stay in memory. It can still be read."""

    async def delete(self, ledger_id: int) -> None:
        """Delete the ledger and its files. An unknown ledger is no error."""
