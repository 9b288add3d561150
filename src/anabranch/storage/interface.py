"""What the rest of the house may know of storage: ledgers that are appended to, read, summed up and deleted.

A *ledger* is an append-only sequence of entries 0, 1, 2 … under an id that is never used twice. It is written by one
process, once: after a crash or a clean close it is *sealed* (its length is final) and the topic goes on in a new one.
Entries are opaque here: this floor never looks inside a payload, except through the `publish_time_of` function it is
given.

Appending is callback-shaped on purpose: a durable group holds thousands of entries and a future for each would cost
more than the entry. A context of the owner's travels with each entry and comes back with the news.
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
    """No room on the device. Reads and acknowledgements of existing data go on; appends work again once there is
    room."""

    code = "storage-full"
    retryable = True


class Fenced(StorageError):
    """Another process has taken over this broker's log; nothing may be confirmed any more."""

    code = "fenced"


class Superseded(StorageError):
    """Who opens this topic was replaced and does not know it yet: a later holder has opened it before."""

    code = "superseded"
    retryable = True


class LedgerNotFound(StorageError):
    code = "ledger-not-found"


class CorruptEntry(StorageError):
    """Checksum mismatch. The entries around it stay readable."""

    code = "corrupt-entry"

    def __init__(self, path: str, offset: int, ledger: int, entry: int) -> None:
        super().__init__(f"checksum mismatch in {path} at offset {offset} (ledger {ledger}, entry {entry})")
        self.path, self.offset, self.ledger, self.entry = path, offset, ledger, entry


class StoredEntry(NamedTuple):
    """One stored entry, from the disk or from memory up to the wire without another wrapping.

    `payload` may be a view into a larger block: copy it to keep it for long.
    """

    position: Position
    messages: int
    payload: Payload
    left: tuple[int, ...] | None = None  # words of the messages that compaction left of a batch; None: all


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """The final shape of a sealed ledger (or the current one of an open ledger)."""

    ledger_id: int
    entries: int
    messages: int
    bytes: int  # payload bytes, headers not counted
    file_bytes: int  # where the valid part of the file ends
    last_publish_ms: int  # publish time of the last entry, 0 when unknown or empty


class AppendSink(Protocol):
    """Who is told about the appends of a ledger (all of them go to one sink). Called on the event loop, in append
    order."""

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        """The ledger's share of a durable group, and the context of each."""

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None: ...


class LedgerWriter(Protocol):
    """The only writer of one open ledger."""

    ledger_id: int
    next_entry_id: int  # what the next append will get
    durable_entry_id: int  # last entry confirmed durable, -1 when none
    durable_bytes: int  # payload bytes and messages up to that entry
    durable_messages: int
    bytes: int  # payload bytes appended (durable or not)
    messages: int

    def append(self, payload: Payload, messages: int, sink: AppendSink, context: Any) -> int:
        """Queue one entry for the next group; the entry id is fixed now, the sink is told when it is durable.

        Raises StorageFull, Fenced or StorageError at once when appends are refused. After a failed append every later
        entry of the same ledger fails too (no holes): the owner seals this ledger and goes on in a new one.
        """

    def append_run(
        self, payloads: Sequence[Payload], messages: Sequence[int], sink: AppendSink, contexts: Sequence[Any]
    ) -> int:
        """`append` of several, for less: all of them are queued, or none and it raises. The first one's entry id."""

    async def seal(self) -> LedgerSummary:
        """Wait for what is queued, make the length final, and give up the writer."""


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


class LedgerStore(Protocol):
    """All ledgers that one broker can reach on its volume."""

    def start(self, listener: StoreListener) -> None:
        """Send events to this listener from now on; without one, groups are confirmed and events are dropped."""

    def create(self, ledger_id: int) -> LedgerWriter:
        """A new, empty ledger; no I/O until its first append."""

    async def summarize(self, ledger_id: int) -> LedgerSummary:
        """Length of a ledger nobody writes any more, found by reading its tail only; torn bytes at the end are not
        part of it.

        A ledger without a file is empty, not an error.
        """

    def read_cached(self, ledger_id: int, first: int, entries_max: int, bytes_max: int) -> list[StoredEntry] | None:
        """Entries from memory, without waiting: only durable ones; None when `first` is not in memory (or not durable
        yet: [])."""

    def read_resident(
        self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[StoredEntry] | None:
        """As `read`, without waiting, where the last read ended and the file's bytes are in memory; otherwise None."""

    async def read(self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Entries `first <= id < end`, at least one if it exists and is sound, at most the two bounds (first entry
        excepted).

        Sequential calls are cheap: the store remembers where the last read of this ledger ended. Raises CorruptEntry
        only when the *first* entry asked for is the bad one; otherwise it stops before it.
        """

    async def messages_before(self, ledger_id: int, entry_id: int) -> int:
        """How many messages the entries 0 … entry_id-1 hold (from the sparse index, then at most one index step of
        headers)."""

    async def first_entry_at(self, ledger_id: int, publish_ms: int, end: int) -> int:
        """First entry whose publish time is >= publish_ms, or `end`."""

    async def delete(self, ledger_id: int) -> None:
        """Forget the ledger and its files; absent is fine."""
