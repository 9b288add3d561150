"""`BookKeeperLedgerStore`: ledgers on Apache BookKeeper, replicated on several machines. Implements `LedgerStore`.

It keeps nothing on the broker's own disk. A ledger exists before its id is announced (`allocate`), so that a later
owner can always seal it: sealing is recovery, which fences the former writer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.bookkeeper.bookie_directory import BookieDirectory
from anabranch.storage.bookkeeper.bookies import Bookies
from anabranch.storage.bookkeeper.delivery import Delivery
from anabranch.storage.bookkeeper.entry_head import ENTRY_HEAD_BYTES
from anabranch.storage.bookkeeper.errors import BookieUnreachable, LedgerNodesUnavailable, NotEnoughBookies
from anabranch.storage.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState, Quorums, Segment
from anabranch.storage.bookkeeper.ledger_nodes import LedgerNodes, new_token
from anabranch.storage.bookkeeper.ledger_reads import LedgerReads
from anabranch.storage.bookkeeper.ledger_recovery import LedgerRecovery
from anabranch.storage.bookkeeper.ledger_writer import BookKeeperWriter
from anabranch.storage.bookkeeper.settings import BookKeeperUrl
from anabranch.storage.interface import (
    Fenced,
    LedgerNotFound,
    LedgerSummary,
    LedgerWriter,
    Payload,
    StorageError,
    StoredEntry,
    StoreListener,
)
from anabranch.storage.tail_cache import TailCache
from anabranch.zookeeper.connection import Connection
from anabranch.zookeeper.errors import ZooKeeperError

log = get_logger(__name__)

SESSION_MS = 12_000
REQUEST_S = 10.0
REPAIR_S = 1.0
KNOWN_LEDGERS_MAX = 20_000
AT_ONCE_MAX = 64
"""Ledgers created or recovered at the same time, in the order in which they were asked for. After the end of a broker
thousands of topics open; all at once, each would wait for all others, longer than requests to ZooKeeper may take."""
EMPTY_KEPT_S = 60.0
"""An empty ledger that another broker wrote is deleted so much later: this broker may still write to it, and only a
ledger that exists is certain to be fenced."""


class BookKeeperLedgerStore:
    """`async with BookKeeperLedgerStore(…) as store`."""

    def __init__(
        self,
        url: BookKeeperUrl,
        clock: Clock,
        chance: Chance,
        publish_time_of: Callable[[Payload], int],
        *,
        cache_bytes: int,
        generation: int = 1,
        owner: str = "",
    ) -> None:
        """`generation`: number of this start of the broker. `owner`: id of the cluster, stored with each ledger."""
        self.generation = generation
        self.volume_id = ""
        self.owner = owner
        self._url, self._clock, self._chance, self._publish_time_of = url, clock, chance, publish_time_of
        self.directory = BookieDirectory(url.root, clock, chance, self._on_bookies_changed)
        self.directory.racks = url.racks
        self._connection = Connection(
            url.servers,
            clock,
            timeout_ms=SESSION_MS,
            request_s=REQUEST_S,
            renew_expired=True,
            on_event=self.directory.on_event,
            prepare=self.directory.prepare,
        )
        self.nodes = LedgerNodes(self._connection, url.root)
        self.bookies = Bookies(clock, self.directory.address_of, request_s=url.request_s)
        self._writers: dict[int, BookKeeperWriter] = {}  # open ones, and sealed ones with entries in memory
        self._delivery = Delivery(clock, self._writers.values)
        self._cache: TailCache[BookKeeperWriter] = TailCache(cache_bytes, self._on_evicted)
        self._reads = LedgerReads(self.bookies, self._metadata_of, self.directory.put_in_quarantine)
        self._created: dict[int, tuple[LedgerMetadata, int]] = {}  # allocated, not written yet
        self._known: OrderedDict[int, LedgerMetadata] = OrderedDict()  # closed ledgers
        self._recovering: dict[int, asyncio.Task[LedgerMetadata]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self._tasks = TaskOwner("bookkeeper")

    # opening and closing

    async def __aenter__(self) -> Self:
        try:
            await self._connection.open(self._connection.deadline())
            self.volume_id = f"bookkeeper:{await self.nodes.check()}{self._url.root}"
            await self.directory.refresh(self._connection)
        except ZooKeeperError as error:
            await self.close()
            raise LedgerNodesUnavailable(f"BookKeeper's ZooKeeper: {error}") from error
        except BaseException:
            await self.close()
            raise
        self._tasks.spawn(self.directory.follow(self._connection), "bookies")
        self._tasks.spawn(self._repair(), "repair")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ledgers that are still open are left to recovery: their topics were closed before."""
        for writer in list(self._writers.values()):
            if not writer.is_sealed:
                writer.fail(StorageError("the store is closed"))
            writer.deliver()
        await self._tasks.close()
        for recovering in list(self._recovering.values()):
            recovering.cancel()
        await asyncio.gather(*self._recovering.values(), return_exceptions=True)
        await self.bookies.close()
        await self._connection.close()

    def start(self, listener: StoreListener) -> None:
        self._delivery.start(listener)

    # writing

    async def allocate(self, above: int = 0) -> int:
        """A new ledger, which exists when this returns. Raises NotEnoughBookies."""
        self.check_writable()
        async with self._turns:
            ensemble = self.directory.ensemble(self._url.quorums.ensemble, self._url.ensemble_min)
            metadata = LedgerMetadata(
                Quorums(len(ensemble), len(ensemble), self._url.quorums.ack),
                (Segment(0, ensemble),),
                password=self._url.password,
                owner=self.owner,
                creator_token=new_token(),
            )
            ledger, version = await self.nodes.create(metadata)
        if ledger <= above:
            await self.nodes.delete(ledger)
            raise StorageError(
                f"BookKeeper allocated ledger {ledger}, but the topic has ledger {above} already: its ledgers are in "
                "another BookKeeper cluster or in files"
            )
        self._created[ledger] = (metadata, version)
        return ledger

    async def reserve(self, ledger_id: int) -> bool:
        """Of `CopyTarget`. An open one was left by a copy that was interrupted: it is written again from entry 0."""
        ensemble = self.directory.ensemble(self._url.quorums.ensemble, self._url.ensemble_min)
        quorums = Quorums(len(ensemble), len(ensemble), self._url.quorums.ack)
        metadata = LedgerMetadata(
            quorums, (Segment(0, ensemble),), password=self._url.password, owner=self.owner, creator_token=new_token()
        )
        version = await self.nodes.create_at(ledger_id, metadata)
        if version is None:
            found = await self.nodes.load(ledger_id)
            if found is None or found.metadata.owner != self.owner or not self.owner:
                raise StorageError(
                    f"BookKeeper has a ledger {ledger_id} of another cluster or program: use a separate root"
                )
            if found.metadata.is_closed:
                return False
            if found.metadata.state is not LedgerState.OPEN:
                raise StorageError(f"ledger {ledger_id} in BookKeeper is being recovered by another program")
            metadata = replace(found.metadata, segments=(Segment(0, ensemble),), quorums=quorums)
            version = await self.nodes.save(ledger_id, metadata, found.version)
        self._created[ledger_id] = (metadata, version)
        return True

    def create(self, ledger_id: int) -> LedgerWriter:
        self.check_writable()
        metadata, version = self._created.pop(ledger_id)
        writer = BookKeeperWriter(
            ledger_id,
            metadata,
            version,
            nodes=self.nodes,
            bookies=self.bookies,
            clock=self._clock,
            host=self,
            publish_time_of=self._publish_time_of,
        )
        self._writers[ledger_id] = writer
        return writer

    def check_writable(self) -> None:
        """Raises the error that an append would get now, as far as it is known."""
        if self._delivery.fenced is not None:
            raise Fenced(self._delivery.fenced.reason)

    def check_fence(self) -> None:
        """A later owner fences ledgers, one by one, when it opens their topics; the session fences the broker."""

    async def flush(self) -> None:
        """Sealed ledgers can be read by every broker at once."""

    async def recover_peer(self, broker_id: str, incarnation: int) -> None:
        """A dead broker leaves nothing behind: the next owner of a topic recovers the topic's ledgers."""

    async def delete(self, ledger_id: int) -> None:
        writer = self._writers.get(ledger_id)
        if writer is not None:
            try:
                await writer.seal()
            except StorageError as error:
                log.info("deleted ledger was not closed", extra={"ledger": ledger_id, "reason": str(error)})
            self._cache.drop(writer)
            self._writers.pop(ledger_id, None)
        is_own = writer is not None or self._created.pop(ledger_id, None) is not None
        known = self._known.pop(ledger_id, None)
        self._reads.forget(ledger_id)
        if not is_own and known is None:
            found = await self.nodes.load(ledger_id)
            known = None if found is None else found.metadata
        if not is_own and known is not None and known.last_entry < 0:
            self._tasks.spawn(self._delete_later(ledger_id), "delete")
        else:
            await self.nodes.delete(ledger_id)

    async def _delete_later(self, ledger_id: int) -> None:
        await self._clock.sleep(EMPTY_KEPT_S)
        try:
            await self.nodes.delete(ledger_id)
        except StorageError as error:
            log.warning("empty ledger not deleted", extra={"ledger": ledger_id, "reason": str(error)})

    # reading

    async def summarize(self, ledger_id: int) -> LedgerSummary:
        """Seals the ledger first, if another process has not done so: its former owner can write no more."""
        writer = self._writers.get(ledger_id)
        if writer is not None:
            return writer.summary()
        try:
            metadata = await self._closed(ledger_id)
        except LedgerNotFound:
            await self._close_absent(ledger_id)
            metadata = await self._closed(ledger_id)
        if metadata.last_entry < 0:
            return LedgerSummary(ledger_id, 0, 0, 0, 0, 0)
        head = await self._reads.head(ledger_id, metadata.last_entry)
        entries = metadata.last_entry + 1
        size = metadata.length - entries * ENTRY_HEAD_BYTES
        return LedgerSummary(ledger_id, entries, head.messages_upto, size, 0, head.publish_ms_max)

    def read_cached(self, ledger_id: int, first: int, entries_max: int, bytes_max: int) -> list[StoredEntry] | None:
        writer = self._writers.get(ledger_id)
        if writer is None:
            return None
        if first > writer.durable_entry_id:
            return []
        cache = writer.cache
        entry = cache.get(first)
        if entry is None:
            return None
        found = [entry]
        size = len(entry.payload)
        for entry_id in range(first + 1, min(first + entries_max, writer.durable_entry_id + 1)):
            entry = cache[entry_id]
            size += len(entry.payload)
            if size > bytes_max:
                break
            found.append(entry)
        return found

    def read_resident(
        self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[StoredEntry] | None:
        return self._reads.buffered(ledger_id, first, end, entries_max, bytes_max) if first < end else None

    async def read(self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        writer = self._writers.get(ledger_id)
        if writer is not None:
            end = min(end, writer.durable_entry_id + 1)
            if first < end and first >= writer.cache_first:
                return self.read_cached(ledger_id, first, min(entries_max, end - first), bytes_max) or []
        else:
            end = min(end, (await self._closed(ledger_id)).last_entry + 1)
        if first >= end:
            return []
        return await self._reads.read(ledger_id, first, end, entries_max, bytes_max)

    async def messages_before(self, ledger_id: int, entry_id: int) -> int:
        writer = self._writers.get(ledger_id)
        if entry_id <= 0:
            return 0
        if writer is not None and entry_id > writer.durable_entry_id:
            return writer.durable_messages
        if writer is None and entry_id > (last := (await self._closed(ledger_id)).last_entry):
            return (await self._reads.head(ledger_id, last)).messages_upto if last >= 0 else 0
        return (await self._reads.head(ledger_id, entry_id)).messages_before

    async def first_entry_at(self, ledger_id: int, publish_ms: int, end: int) -> int:
        writer = self._writers.get(ledger_id)
        last = writer.durable_entry_id if writer is not None else (await self._closed(ledger_id)).last_entry
        low, high = 0, min(end, last + 1)
        if high <= 0:
            return end
        while low < high:
            middle = (low + high) // 2
            if (await self._reads.head(ledger_id, middle)).publish_ms_max >= publish_ms:
                high = middle
            else:
                low = middle + 1
        return low if low < min(end, last + 1) else end

    def evict(self, ledger_id: int) -> None:
        self._created.pop(ledger_id, None)
        self._reads.forget(ledger_id)
        writer = self._writers.get(ledger_id)
        if writer is not None and writer.is_sealed:
            self._cache.drop(writer)
            self._retire(writer)

    @property
    def copies(self) -> int:
        """Wanted for each entry."""
        return self._url.quorums.write

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Close the ledger of any writer and return its metadata. Raises LedgerNotFound, NotEnoughBookies."""
        return await self._closed(ledger_id)

    # of the writers

    def is_deliverable(self, writer: BookKeeperWriter) -> None:
        self._delivery.add(writer)

    def spares(self, writer: BookKeeperWriter) -> list[str]:
        return self.directory.spares([one for one in writer.ensemble if one not in writer.failed_bookies])

    def bookie_failed(self, bookie: str, reason: str) -> None:
        self.directory.put_in_quarantine(bookie)

    def delivered(self, writer: BookKeeperWriter, entries: Sequence[StoredEntry]) -> None:
        self._cache.add(writer, entries[-1].position.entry, len(entries), sum(len(entry.payload) for entry in entries))
        self._cache.trim()

    # inside

    def _on_evicted(self, writer: BookKeeperWriter) -> None:
        self._retire(writer)

    def _retire(self, writer: BookKeeperWriter) -> None:
        """A sealed ledger without entries in memory is read like any other."""
        if writer.is_finished and not writer.cache:
            self._writers.pop(writer.ledger_id, None)

    def _on_bookies_changed(self) -> None:
        self.bookies.connect_now(self.directory.writable | self.directory.readonly)
        for writer in list(self._writers.values()):
            if writer.is_under_replicated:
                writer.bookies_changed()

    async def _repair(self) -> None:
        """Runs for ever: members of ensembles that failed and answer again get the pending entries."""
        while True:
            await self._clock.sleep(REPAIR_S)
            for writer in [one for one in self._writers.values() if one.is_under_replicated]:
                writer.bookies_changed()
                for bookie in writer.failed_bookies & self.directory.writable:
                    try:
                        await self.bookies.connect(bookie)
                    except BookieUnreachable:
                        continue
                    writer.bookie_restored(bookie)

    async def _metadata_of(self, ledger_id: int, is_fresh: bool) -> LedgerMetadata:
        """To read by. `is_fresh`: autorecovery may have changed it."""
        writer = self._writers.get(ledger_id)
        if writer is not None and not (is_fresh and writer.metadata.is_closed):
            return writer.metadata
        if is_fresh:
            self._known.pop(ledger_id, None)
        return await self._closed(ledger_id)

    async def _closed(self, ledger_id: int) -> LedgerMetadata:
        """The metadata of a ledger that can grow no more: recovers it if needed. Raises LedgerNotFound."""
        known = self._known.get(ledger_id)
        if known is not None:
            self._known.move_to_end(ledger_id)
            return known
        recovering = self._recovering.get(ledger_id)
        if recovering is None:
            recovering = asyncio.get_running_loop().create_task(self._close_foreign(ledger_id))
            self._recovering[ledger_id] = recovering
            recovering.add_done_callback(lambda task: self._on_recovered(ledger_id, task))
        return await asyncio.shield(recovering)

    def _on_recovered(self, ledger_id: int, task: asyncio.Task[LedgerMetadata]) -> None:
        self._recovering.pop(ledger_id, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._known[ledger_id] = task.result()
        while len(self._known) > KNOWN_LEDGERS_MAX:
            self._known.popitem(last=False)

    async def _close_foreign(self, ledger_id: int) -> LedgerMetadata:
        async with self._turns:
            return await self._load_closed(ledger_id)

    async def _load_closed(self, ledger_id: int) -> LedgerMetadata:
        found = await self.nodes.load(ledger_id)
        if found is None:
            raise LedgerNotFound(f"ledger {ledger_id} has no metadata in BookKeeper")
        if found.metadata.is_closed:
            return found.metadata
        recovery = LedgerRecovery(ledger_id, self.nodes, self.bookies, self.directory.spares, found.metadata.password)
        closed = await recovery.run()
        log.info("recovered a ledger", extra={"ledger": ledger_id, "entries": closed.last_entry + 1})
        return closed

    async def _close_absent(self, ledger_id: int) -> None:
        """A ledger that is announced and does not exist: no process may create it any more."""
        log.warning("announced ledger does not exist; it counts as empty", extra={"ledger": ledger_id})
        quorums = self._url.quorums
        members = sorted(self.directory.writable | self.directory.readonly)[: quorums.ensemble]
        if len(members) < quorums.ensemble:
            raise NotEnoughBookies(
                f"ledger {ledger_id} does not exist, and too few bookies are there to reserve its id"
            )
        metadata = LedgerMetadata(quorums, (Segment(0, tuple(members)),), password=self._url.password, owner=self.owner)
        await self.nodes.create_at(ledger_id, metadata.closed(NO_ENTRY, 0))
