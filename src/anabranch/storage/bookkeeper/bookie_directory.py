"""Which bookies there are, from their nodes in ZooKeeper: writable, read-only, in quarantine, and their addresses.

A bookie's node is ephemeral, so it stays for seconds after the bookie has died; connections notice that earlier. A
bookie that failed is in *quarantine* for a while: others are preferred for new ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from google.protobuf.message import DecodeError

from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.storage.bookkeeper.bookkeeper_pb2 import BookieValue
from anabranch.storage.bookkeeper.errors import BookieUnreachable
from anabranch.storage.bookkeeper.placement import choose_ensemble, rank_spares
from anabranch.zookeeper import jute
from anabranch.zookeeper.channel import Channel
from anabranch.zookeeper.connection import Connection
from anabranch.zookeeper.errors import Code, ServerError, ZooKeeperError

log = get_logger(__name__)

QUARANTINE_S = 30.0
RETRY_S = 1.0
_READONLY = "readonly"
_PROTOCOL = "bookie-rpc"


class BookieDirectory:
    def __init__(self, root: str, clock: Clock, chance: Chance, on_changed: Callable[[], None]) -> None:
        self._path = f"{root}/available"
        self._clock, self._chance, self._on_changed = clock, chance, on_changed
        self._addresses: dict[str, tuple[str, int]] = {}  # also of bookies that are gone: they may answer all the same
        self._quarantine: dict[str, float] = {}  # bookie -> until
        self._is_due = asyncio.Event()
        self.writable: frozenset[str] = frozenset()
        self.readonly: frozenset[str] = frozenset()
        self.racks: Mapping[str, str] = {}

    # watching

    async def prepare(self, channel: Channel) -> None:
        """On every new channel, before it is used: set the watch, then read what was missed."""
        channel.send(jute.watch_tree(self._path), self._clock.monotonic() + RETRY_S)
        self._is_due.set()

    def on_event(self, event: jute.Event) -> None:
        self._is_due.set()

    async def follow(self, connection: Connection) -> None:
        """Runs for ever."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            try:
                await self.refresh(connection)
            except ZooKeeperError as error:
                log.warning("bookies not listed; trying again", extra={"reason": str(error)})
                self._is_due.set()
                await self._clock.sleep(RETRY_S)

    async def refresh(self, connection: Connection) -> None:
        deadline = connection.deadline()
        writable = await self._children(connection, self._path, deadline) - {_READONLY}
        readonly = await self._children(connection, f"{self._path}/{_READONLY}", deadline)
        for path, bookies in ((self._path, writable), (f"{self._path}/{_READONLY}", readonly)):
            for bookie in bookies:  # all: one that was restarted in between may have another address now
                address = await self._read_address(connection, f"{path}/{bookie}", bookie, deadline)
                if address is not None:
                    self._addresses[bookie] = address
        before = (self.writable, self.readonly)
        self.writable, self.readonly = frozenset(writable - readonly), frozenset(readonly)
        if (self.writable, self.readonly) != before:
            log.info("bookies changed", extra={"writable": sorted(self.writable), "readonly": sorted(self.readonly)})
        self._on_changed()  # also for a bookie that was restarted so fast that it never seemed to be away

    # asking

    def address_of(self, bookie: str) -> tuple[str, int]:
        found = self._addresses.get(bookie) or _address_in(bookie)
        if found is None:
            raise BookieUnreachable(bookie, "its address is not known: it is not registered in ZooKeeper")
        return found

    def ensemble(self, size: int, size_min: int) -> tuple[str, ...]:
        """For a new ledger. Raises NotEnoughBookies if fewer than `size_min` bookies can be written."""
        size = max(size_min, min(size, len(self.writable)))
        return choose_ensemble(self._shuffled(), size, quarantined=self.quarantined, racks=self.racks)

    def spares(self, kept: Collection[str]) -> list[str]:
        """Bookies that can be written, best first. `kept`: the members that stay in the ensemble."""
        return rank_spares(self._shuffled(), quarantined=self.quarantined, racks=self.racks, kept=kept)

    def _shuffled(self) -> list[str]:
        return sorted(sorted(self.writable), key=lambda _: self._chance.random())

    @property
    def quarantined(self) -> frozenset[str]:
        now = self._clock.monotonic()
        self._quarantine = {bookie: until for bookie, until in self._quarantine.items() if until > now}
        return frozenset(self._quarantine)

    def put_in_quarantine(self, bookie: str) -> None:
        self._quarantine[bookie] = self._clock.monotonic() + QUARANTINE_S

    # inside

    async def _children(self, connection: Connection, path: str, deadline: float) -> set[str]:
        try:
            return set(jute.children_of((await connection.call(jute.get_children(path), deadline)).body))
        except ServerError as error:
            if error.number == Code.NO_NODE:
                return set()
            raise

    async def _read_address(
        self, connection: Connection, path: str, bookie: str, deadline: float
    ) -> tuple[str, int] | None:
        try:
            node = jute.node_of((await connection.call(jute.get_data(path), deadline)).body)
        except ServerError as error:
            if error.number == Code.NO_NODE:
                return None  # gone meanwhile
            raise
        value = BookieValue()
        try:
            value.ParseFromString(node.data or b"")
        except DecodeError as error:
            log.warning("address of a bookie cannot be read", extra={"bookie": bookie, "reason": str(error)})
        return next(((one.host, one.port) for one in value.endpoint if one.protocol == _PROTOCOL), _address_in(bookie))


def _address_in(bookie: str) -> tuple[str, int] | None:
    """The address in an id of the form HOST:PORT."""
    host, mark, port = bookie.rpartition(":")
    return (host, int(port)) if mark and port.isascii() and port.isdigit() else None
