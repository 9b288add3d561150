"""Shell of `recovery_state`: closes the ledger of another writer, with reads and adds on real bookies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.bookkeeper import packets
from anabranch.storage.bookkeeper.bookies import Bookies
from anabranch.storage.bookkeeper.entry_body import EntryBody, read_body
from anabranch.storage.bookkeeper.errors import BookieUnreachable, LedgerNodesUnavailable, NotEnoughBookies
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata
from anabranch.storage.bookkeeper.ledger_nodes import LedgerNodes, LedgerRaced
from anabranch.storage.bookkeeper.packets import Answer, Code, Flag
from anabranch.storage.bookkeeper.recovery_state import (
    Absent,
    FenceRead,
    LedgerRecoveryState,
    ReadEntry,
    ReadMetadata,
    Recovered,
    RecoveryAdd,
    RecoveryEffect,
    RecoveryFailed,
)
from anabranch.storage.bookkeeper.writer_state import SaveLedger
from anabranch.storage.interface import StorageError

RECOVERY_S = 60.0


class LedgerRecovery:
    """`await LedgerRecovery(…).run()` once. Any number may run at the same time, in this process and in others."""

    def __init__(
        self,
        ledger: int,
        nodes: LedgerNodes,
        bookies: Bookies,
        spares: Callable[[Collection[str]], list[str]],
        password: bytes,
    ) -> None:
        """`spares(kept)`: bookies that can be written beside `kept`, best first."""
        self._state = LedgerRecoveryState(ledger)
        self._ledger, self._nodes, self._bookies, self._spares = ledger, nodes, bookies, spares
        self._key = packets.master_key(password)
        self._tasks = TaskOwner(f"recovery of ledger {ledger}")
        self._done: asyncio.Future[LedgerMetadata] = asyncio.get_running_loop().create_future()

    async def run(self) -> LedgerMetadata:
        """The metadata of the closed ledger. Raises LedgerNotFound or NotEnoughBookies; nothing was lost then."""
        self._apply(self._state.start())
        try:
            async with asyncio.timeout(RECOVERY_S):
                return await self._done
        except TimeoutError:
            raise NotEnoughBookies(f"ledger {self._ledger} was not recovered within {RECOVERY_S:g} s") from None
        finally:
            await self._tasks.close()

    def on_add(self, bookie: str, entry: int, code: int) -> None:
        if code == Code.OK:
            self._apply(self._state.added(bookie, entry))
        else:
            kept = [one for one in self._state.healthy if one != bookie]
            self._apply(self._state.bookie_failed(bookie, entry, self._spares(kept)))

    def _apply(self, effects: Iterable[RecoveryEffect]) -> None:
        for effect in effects:
            match effect:
                case ReadMetadata():
                    self._tasks.spawn(self._read_metadata(), "metadata")
                case SaveLedger():
                    self._tasks.spawn(self._save(effect), "save")
                case FenceRead():
                    self._tasks.spawn(self._fence(effect.bookie), "fence")
                case ReadEntry():
                    self._tasks.spawn(self._read(effect), "read")
                case RecoveryAdd(bookie, entry, head, payload):
                    flags = Flag.RECOVERY | Flag.HIGH_PRIORITY
                    self._bookies.add(bookie, self._ledger, entry, self._key, head, payload, flags, self)
                case Recovered(metadata):
                    if not self._done.done():
                        self._done.set_result(metadata)
                case RecoveryFailed(error):
                    self._fail(error)

    def _fail(self, error: StorageError) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    async def _read_metadata(self) -> None:
        try:
            found = await self._nodes.load(self._ledger)
        except StorageError as error:
            self._fail(error)
            return
        if found is not None:
            self._key = packets.master_key(found.metadata.password)
        self._apply(self._state.stored(*(found[:2] if found else (None, -1))))

    async def _save(self, wanted: SaveLedger) -> None:
        try:
            version = await self._nodes.save(self._ledger, wanted.metadata, wanted.expected_version)
        except LedgerRaced:
            await self._read_metadata()
        except LedgerNodesUnavailable as error:
            self._fail(error)
        else:
            self._apply(self._state.saved(version))

    async def _fence(self, bookie: str) -> None:
        answer = await self._ask(bookie, packets.LAST_ENTRY, Flag.FENCE | Flag.HIGH_PRIORITY)
        self._apply(self._state.fence_answered(bookie, self._body(answer, None)))

    async def _read(self, wanted: ReadEntry) -> None:
        flags = Flag.FENCE | Flag.HIGH_PRIORITY if wanted.fences else Flag.HIGH_PRIORITY
        answer = await self._ask(wanted.bookie, wanted.entry, flags)
        self._apply(self._state.read_answered(wanted.bookie, wanted.entry, self._body(answer, wanted.entry)))

    async def _ask(self, bookie: str, entry: int, flags: Flag) -> Answer | None:
        try:
            return await self._bookies.read(
                bookie, self._ledger, entry, flags, self._key if flags & Flag.FENCE else b""
            )
        except BookieUnreachable:
            return None

    def _body(self, answer: Answer | None, entry: int | None) -> EntryBody | Absent:
        if answer is None:
            return Absent.UNKNOWN
        if answer.code in (Code.NO_LEDGER, Code.NO_ENTRY):
            return Absent.EXPLICIT
        if answer.code != Code.OK:
            return Absent.UNKNOWN
        return read_body(answer.bodies[0], self._ledger, entry) or Absent.UNKNOWN
