"""The nodes of ledgers in BookKeeper's ZooKeeper: ids, creation, compare-and-set, deletion. Errors are translated here.

| node below the root | holds |
|---|---|
| `LAYOUT` | how ledger ids become paths; anything but the hierarchical layout is refused |
| `INSTANCEID` | identity of the BookKeeper cluster |
| `idgen/ID-` | sequential nodes, whose numbers are the ids of new ledgers |
| `00/0000/L0042` | metadata of a ledger |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from anabranch.runtime.chance import secret_bytes
from anabranch.storage.bookkeeper.errors import BadMetadata, LedgerNodesUnavailable
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata, decode_ledger, encode_ledger, ledger_path
from anabranch.storage.interface import StorageError
from anabranch.zookeeper import jute
from anabranch.zookeeper.connection import Connection
from anabranch.zookeeper.errors import Code, OutcomeUncertain, ServerError, ZooKeeperError

_LAYOUT = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
_ID_PREFIX = "ID-"
IDS_AT_ONCE = 64


class StoredLedger(NamedTuple):
    metadata: LedgerMetadata
    version: int
    created_ms: int  # by ZooKeeper's clock


class LedgerRaced(StorageError):
    """The compare-and-set lost, or its outcome is unknown: read the node."""

    code = "bookkeeper-ledger-raced"


class LedgerNodes:
    def __init__(self, connection: Connection, root: str) -> None:
        self._connection, self._root = connection, root

    async def check(self) -> str:
        """The id of the BookKeeper cluster. Raises BadMetadata if this is none, or one of another layout."""
        with _translated():
            layout = await self._get(f"{self._root}/LAYOUT")
            instance = await self._get(f"{self._root}/INSTANCEID")
            is_long = await self._get(f"{self._root}/idgen-long") is not None
        if layout is None or instance is None:
            raise BadMetadata(
                f"no BookKeeper cluster at {self._root}: initialise it with `bookkeeper shell initnewcluster`"
            )
        lines = (layout.data or b"").decode(errors="replace").split("\n")
        if len(lines) < 2 or lines[1].partition(":")[0] != _LAYOUT:
            raise BadMetadata(f"ledgers at {self._root} have layout {lines[1:2]}, only {_LAYOUT} can be used")
        if is_long:
            raise BadMetadata(f"ledger ids at {self._root} are past 31 bits, which is not supported")
        return (instance.data or b"").decode(errors="replace").strip()

    async def create(self, metadata: LedgerMetadata) -> tuple[int, int]:
        """Id and version of a new ledger."""
        with _translated():
            ledger = await self._new_id() or await self._new_id()  # 0 stands for "not known" in topic records
            try:
                return ledger, await self._create(self._path(ledger), metadata)
            except OutcomeUncertain:
                found = await self.load(ledger)
                if found is None or found.metadata.creator_token != metadata.creator_token:
                    raise
                return ledger, found.version

    async def create_at(self, ledger: int, metadata: LedgerMetadata) -> int | None:
        """Create a ledger with a given id: a copy, or a closed one that reserves the id. Its version; None if it exists
        already, also if the answer to this creation was lost."""
        with _translated():
            try:
                return await self._create(self._path(ledger), metadata)
            except ServerError as error:
                if error.number != Code.NODE_EXISTS:
                    raise
                return None

    async def raise_ids(self, above: int) -> None:
        """New ledgers get ids above this one from now on."""
        with _translated():
            while max(await asyncio.gather(*(self._new_id() for _ in range(IDS_AT_ONCE)))) < above:
                pass

    async def load(self, ledger: int) -> StoredLedger | None:
        with _translated():
            node = await self._get(self._path(ledger))
        if node is None:
            return None
        return StoredLedger(decode_ledger(node.data or b""), node.stat.version, node.stat.created_ms)

    async def save(self, ledger: int, metadata: LedgerMetadata, version: int) -> int:
        """The new version. Raises LedgerRaced."""
        request = jute.set_data(self._path(ledger), encode_ledger(metadata), version)
        with _translated():
            try:
                answer = await self._connection.call(request, self._connection.deadline())
            except OutcomeUncertain as error:
                raise LedgerRaced(str(error)) from error
            except ServerError as error:
                if error.number in (Code.BAD_VERSION, Code.NO_NODE):
                    raise LedgerRaced(f"ledger {ledger} was changed by another process") from error
                raise
        return jute.stat_of(answer.body).version

    async def delete(self, ledger: int) -> None:
        """An absent one is no error."""
        with _translated():
            try:
                await self._connection.call(jute.delete(self._path(ledger), -1), self._connection.deadline())
            except OutcomeUncertain:
                await self.delete(ledger)
            except ServerError as error:
                if error.number != Code.NO_NODE:
                    raise

    async def ids(self, after: int = -1) -> AsyncIterator[int]:
        """All ledgers with short ids above `after`, in order."""
        with _translated():
            for upper in sorted(one for one in await self._children(self._root) if one.isdigit() and len(one) == 2):
                if int(f"{upper}99999999") <= after:
                    continue
                for middle in sorted(await self._children(f"{self._root}/{upper}")):
                    if int(f"{upper}{middle}9999") <= after:
                        continue
                    for name in sorted(await self._children(f"{self._root}/{upper}/{middle}")):
                        ledger = int(upper + middle + name[1:])
                        if ledger > after:
                            yield ledger

    # inside

    def _path(self, ledger: int) -> str:
        return f"{self._root}/{ledger_path(ledger)}"

    async def _get(self, path: str) -> jute.Node | None:
        try:
            return jute.node_of((await self._connection.call(jute.get_data(path), self._connection.deadline())).body)
        except ServerError as error:
            if error.number == Code.NO_NODE:
                return None
            raise

    async def _children(self, path: str) -> list[str]:
        try:
            answer = await self._connection.call(jute.get_children(path), self._connection.deadline())
        except ServerError as error:
            if error.number == Code.NO_NODE:
                return []
            raise
        return jute.children_of(answer.body)

    async def _new_id(self) -> int:
        prefix = f"{self._root}/idgen/{_ID_PREFIX}"
        answer = await self._with_parents(prefix, jute.create_sequential(prefix, b"", acl=jute.OPEN_ACL))
        path = jute.created_path_of(answer)
        ledger = int(path.rpartition(_ID_PREFIX)[2])
        try:
            await self._connection.call(jute.delete(path, -1), self._connection.deadline())
        except ServerError as error:
            if error.number != Code.NO_NODE:
                raise
        except OutcomeUncertain:
            pass  # ephemeral: it goes with the session
        return ledger

    async def _create(self, path: str, metadata: LedgerMetadata) -> int:
        request = jute.create(path, encode_ledger(metadata), ephemeral=False)
        return jute.created_of(await self._with_parents(path, request)).version

    async def _with_parents(self, path: str, request: jute.Request) -> bytes:
        """The answer to a creation, whose parents are created when they are missing."""
        deadline = self._connection.deadline()
        try:
            return (await self._connection.call(request, deadline)).body
        except ServerError as error:
            if error.number != Code.NO_NODE:
                raise
        parts = path.removeprefix(self._root).strip("/").split("/")[:-1]
        for at in range(1, len(parts) + 1):
            try:
                parent = jute.create_intermediate(f"{self._root}/{'/'.join(parts[:at])}")
                await self._connection.call(parent, deadline)
            except ServerError as error:
                if error.number != Code.NODE_EXISTS:
                    raise
        return (await self._connection.call(request, deadline)).body


def new_token() -> int:
    """Tells one creation of a ledger from another, when its answer was lost."""
    return int.from_bytes(secret_bytes(8), "big", signed=True)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ZooKeeperError as error:
        raise LedgerNodesUnavailable(f"BookKeeper's ZooKeeper: {error}") from error
