"""The embedded ledger store: one commit log per broker, ledger files written behind it, entries cached at the tail.

`EmbeddedLedgerStore` opens and closes the volume and joins two parts: `WritePipeline` appends and deletes,
`LedgerReads` reads from memory or from ledger files. It runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from anabranch.runtime.blocking import Blocking
from anabranch.runtime.clock import Clock
from anabranch.runtime.disk import Disk, Lock
from anabranch.storage import volume
from anabranch.storage.interface import LedgerWriter, Payload, StorageError, StoreListener
from anabranch.storage.ledger.ledger_files import LedgerFiles
from anabranch.storage.ledger.ledger_reader import LedgerReader
from anabranch.storage.ledger.sparse_index import SparseIndex
from anabranch.storage.ledger_reads import LedgerReads
from anabranch.storage.log.append_gate import AppendGate, translated
from anabranch.storage.log.commit_log import CommitLog
from anabranch.storage.log.disk_full import DiskReserve, fill_reserve
from anabranch.storage.log.fence import Fence, log_dir
from anabranch.storage.log.open_ledger import OpenLedger
from anabranch.storage.log.peer_recovery import recover_peer, report, seize_log
from anabranch.storage.log.recovery import Recovery, take_over
from anabranch.storage.log.released_ledgers import ReleasedLedgers
from anabranch.storage.settings import StorageSettings
from anabranch.storage.write_pipeline import WritePipeline

BUSY_AGAIN_S = 0.05


def _no_pause(_: str) -> None:
    """Tests stop a process at a named step; in production a step does nothing."""


@dataclass(frozen=True, slots=True)
class StorageStats:
    volume_id: str
    state: str  # "open" or the code of the error that appends get
    groups: int
    entries: int
    checkpoints: int
    log_number: int
    log_bytes: int
    unwritten_bytes: int
    cached_bytes: int
    ledgers_in_memory: int


class EmbeddedLedgerStore:
    """`async with EmbeddedLedgerStore(…) as store`. Implements `LedgerStore`."""

    def __init__(
        self,
        settings: StorageSettings,
        disk: Disk,
        blocking: Blocking,
        clock: Clock,
        publish_time_of: Callable[[Payload], int],
        *,
        busy_seconds: float = 0.0,
        pause_at: Callable[[str], None] = _no_pause,
    ) -> None:
        """`busy_seconds`: how long to wait while another process holds the log; a peer may be recovering it."""
        self.volume_id = ""
        self.highest_id = 0  # of the ledgers found on the volume when it was opened
        self.recovery: Recovery | None = None
        self._settings = settings
        self._disk = disk
        self._blocking = blocking
        self._clock = clock
        self._publish_time_of = publish_time_of
        self._busy_seconds = busy_seconds
        self._pause_at = pause_at
        self._root = str(settings.dir)
        self._gate = AppendGate()
        self._reserve = DiskReserve(disk, volume.broker_dir(self._root, settings.broker_id), settings.reserve_bytes)
        self._files = LedgerFiles(disk, self._root, settings.open_files_max)
        self._ledgers: dict[int, OpenLedger] = {}  # open ones, and sealed ones with entries in memory
        self._reader = LedgerReader(
            self._files, settings.index_step_bytes, settings.index_step_entries, publish_time_of
        )
        reads = LedgerReads(self._ledgers, self._reader, blocking, publish_time_of)
        self.read_cached = reads.read_cached
        self.read_resident = reads.read_resident
        self.read = reads.read
        self.summarize = reads.summarize
        self.messages_before = reads.messages_before
        self.first_entry_at = reads.first_entry_at

    # opening and closing ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._lock, self._fence = await self._open_when_free()
        settings = self._settings
        directory = log_dir(volume.broker_dir(self._root, settings.broker_id), self._fence.generation)
        self._log = CommitLog(
            self._disk,
            directory,
            self._files,
            bytes_max=settings.log_bytes_max,
            is_synced=settings.is_synced,
            pause_at=self._pause_at,
        )
        self._pipeline = WritePipeline(
            settings,
            clock=self._clock,
            blocking=self._blocking,
            files=self._files,
            commit_log=self._log,
            released=ReleasedLedgers(self._disk, directory),
            fence=self._fence,
            gate=self._gate,
            reserve=self._reserve,
            ledgers=self._ledgers,
            pause_at=self._pause_at,
        )
        return self

    def start(self, listener: StoreListener) -> None:
        self._pipeline.start(listener)

    async def _open_when_free(self) -> tuple[Lock, Fence]:
        until = self._clock.monotonic() + self._busy_seconds
        while True:
            try:
                return await self._blocking.run(self._open)
            except volume.VolumeBusy:
                if self._clock.monotonic() >= until:
                    raise
            await self._clock.sleep(BUSY_AGAIN_S)

    def _open(self) -> tuple[Lock, Fence]:
        try:
            self.volume_id = volume.open_volume(self._disk, self._root)
            lock = volume.lock_broker(self._disk, self._root, self._settings.broker_id)
            try:
                directory = volume.broker_dir(self._root, self._settings.broker_id)
                self._reserve.release()  # recovery may need the space
                fence, self.recovery = take_over(self._disk, directory, self._files, self._pause_at)
                self.highest_id = self._files.highest_id()
                fill_reserve(self._reserve, self._gate)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise translated(error) from error
        report(self.recovery, self._settings.broker_id)
        return lock, fence

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Make queued appends durable, write everything to the ledger files, and delete the log if that worked."""
        is_clean = await self._pipeline.drain()
        await self._blocking.run(self._shut, is_clean)

    def _shut(self, is_clean: bool) -> None:
        if is_clean:
            self._log.remove()
        else:
            self._log.close()
        self._files.close()
        self._fence.close()
        self._lock.release()

    # writing ------------------------------------------------------------------------------------------------------

    def create(self, ledger_id: int) -> LedgerWriter:
        assert ledger_id not in self._ledgers, f"ledger {ledger_id} is written already"
        if self._gate.refusal is not None:
            self._pipeline.disk_full.probe_soon()
            raise self._gate.refuse()
        index = SparseIndex(self._settings.index_step_bytes, self._settings.index_step_entries)
        ledger = OpenLedger(ledger_id, self._gate, self._pipeline.committer.gather, index, self._publish_time_of)
        self._ledgers[ledger_id] = ledger
        return ledger

    async def delete(self, ledger_id: int) -> None:
        await self._pipeline.discard(ledger_id)
        self._reader.forget(ledger_id)
        await self._pipeline.delete_files(ledger_id)

    def evict(self, ledger_id: int) -> None:
        self._pipeline.evict(ledger_id)

    async def flush(self) -> None:
        """Write everything that is durable now to the ledger files.

        Afterwards another broker may read all of it there and delete what it does not need: recovery of this broker's
        log does not restore deleted ledgers.
        """
        await self._pipeline.flush()

    def check_writable(self) -> None:
        """Raises the error that an append would get now: StorageFull, Fenced or StorageError."""
        if self._gate.refusal is not None:
            raise self._gate.refuse()

    def check_fence(self) -> None:
        """Notices that another process has taken over, even while nothing is written here."""
        self._pipeline.check_fence()

    @property
    def generation(self) -> int:
        """Log generation of this process; grows with every start of this broker."""
        return self._fence.generation

    # logs of other brokers ----------------------------------------------------------------------------------------

    async def recover_peer(self, broker_id: str, incarnation: int) -> Recovery:
        """Fence another broker of the volume and write its log to the ledger files.

        Raises BeingRecovered if that broker has restarted and does so itself.
        """
        try:
            found = await self._blocking.run(recover_peer, self._disk, self._root, broker_id, incarnation)
        except OSError as error:
            raise translated(error) from error
        report(found, broker_id)
        return found

    async def take_over(self, broker_id: str) -> Recovery:
        """Fence another broker of this volume (dead or stopped) and write its log to the ledger files."""
        if broker_id == self._settings.broker_id:
            raise StorageError(f"broker {broker_id!r} is this one")
        try:
            recovery = await self._blocking.run(
                seize_log, self._disk, self._settings.dir, broker_id, self._files, self._pause_at
            )
        except OSError as error:
            raise translated(error) from error
        report(recovery, broker_id)
        for ledger_id in recovery.ledgers:
            self._reader.forget(ledger_id)
        return recovery

    def stats(self) -> StorageStats:
        refusal, pipeline = self._gate.refusal, self._pipeline
        return StorageStats(
            volume_id=self.volume_id,
            state=refusal.code if refusal else "open",
            groups=pipeline.committer.groups,
            entries=pipeline.committer.entries,
            checkpoints=pipeline.checkpointer.checkpoints,
            log_number=pipeline.group.log_number,
            log_bytes=pipeline.group.log_place,
            unwritten_bytes=pipeline.write_behind.bytes,
            cached_bytes=pipeline.cache.bytes,
            ledgers_in_memory=len(self._ledgers),
        )
