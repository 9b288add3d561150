"""Bulk writes and deletions in multis, several of them pipelined.

Not atomic: a batch that finds an unexpected node does nothing; its nodes are read and written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from anabranch.metadata.interface import StoreUnavailable
from anabranch.metadata.zookeeper.bulk_read import cut_by, in_order, read_nodes
from anabranch.metadata.zookeeper.nodes import Nodes
from anabranch.metadata.zookeeper.paths import PathMapping
from anabranch.metadata.zookeeper.records import is_intermediate
from anabranch.zookeeper import jute
from anabranch.zookeeper.connection import Connection
from anabranch.zookeeper.errors import Code, ServerError
from anabranch.zookeeper.jute import Node, Op

ROUNDS_MAX = 20
PARTS_PER_BATCH = 500
BATCH_BYTES_MAX = 100_000
"""The server keeps its last 500 transactions in memory, whatever their size. Batches of 700 kB write no faster, and a
server with 512 MB then spends its time in garbage collection (measured: reads 10 × slower)."""

PARENTS_AT_ONCE = 500

_RACED = (Code.NODE_EXISTS, Code.NO_NODE, Code.BAD_VERSION, Code.NOT_EMPTY)

Step = tuple[str, bytes]
"""A path and the part of a multi that changes it."""


class BulkWriter:
    def __init__(self, nodes: Nodes, conn: Connection, keys: PathMapping) -> None:
        self._nodes = nodes
        self._conn = conn
        self._keys = keys

    async def write(self, paths: Collection[str], data_for: Callable[[str, Node | None], bytes]) -> None:
        """`data_for(path, old)` returns the data to store at `path`, over `old`."""
        left = sorted(paths, key=_depth)
        await self._create_parents(left, set(left))
        left = await self._apply([_create(path, data_for(path, None), self._nodes.acl) for path in left])
        for _ in range(ROUNDS_MAX):
            if not left:
                return
            found = await self._read(left)
            await self._create_parents([path for path in left if path not in found], set(found))
            steps: list[Step] = []
            again: list[str] = []
            for path in left:
                node = found.get(path)
                data = data_for(path, node)
                if node is None:
                    steps.append(_create(path, data, self._nodes.acl))
                elif not node.stat.owner:
                    steps.append(_set(path, data, node.stat.version))
                elif not await self._nodes.overwrite(self._conn, path, data, node):
                    again.append(path)
            left = [*again, *await self._apply(steps)]
        raise StoreUnavailable(f"{left[0]} and {len(left) - 1} more: gave up, because other writers were always first")

    async def delete(self, paths: Collection[str]) -> None:
        left = sorted(paths, key=_depth, reverse=True)
        for _ in range(ROUNDS_MAX):
            if not left:
                return
            found = await self._read(left)
            removed: Counter[str] = Counter()  # number of removed children by parent; children come first
            steps: list[Step] = []
            for path in left:
                node = found.get(path)
                if node is None or is_intermediate(node):
                    continue
                if removed[path] == node.stat.child_count:
                    removed[path.rpartition("/")[0]] += 1
                    steps.append(_delete(path, node.stat.version))
                else:
                    steps.append(_set(path, None, node.stat.version))
            left = await self._apply(steps)
            for path in found:
                self._nodes.forget(path)
        raise StoreUnavailable(f"{left[0]} and {len(left) - 1} more: gave up, because other writers were always first")

    async def _apply(self, steps: Sequence[Step]) -> list[str]:
        """Apply in this order; returns the paths of batches that did nothing."""

        async def send(some: Sequence[Step]) -> bool:
            answer = await self._conn.call(jute.multi(part for _, part in some), self._conn.deadline())
            failed = jute.failed_part(jute.multi_of(answer.body))
            if failed is not None and failed[1] not in _RACED:
                raise ServerError(failed[1])
            return failed is None

        left: list[str] = []
        batches = cut_by(steps, lambda step: len(step[1]), BATCH_BYTES_MAX, PARTS_PER_BATCH)
        async for some, is_done in in_order(batches, send):
            if not is_done:
                left += [path for path, _ in some]
        return left

    async def _read(self, paths: Sequence[str]) -> dict[str, Node]:
        return {path: node async for page in read_nodes(self._conn, paths) for path, node in page}

    async def _create_parents(self, paths: Sequence[str], coming: Collection[str]) -> None:
        """Create what is missing above `paths`, except `coming`, which exist or are about to be written."""
        needed: set[str] = set()
        for path in paths:
            above = self._keys.parent(path)
            while above is not None and above not in needed:
                needed.add(above)
                above = self._keys.parent(above)
        order = sorted(needed.difference(coming), key=_depth)
        for start in range(0, len(order), PARENTS_AT_ONCE):
            some = order[start : start + PARENTS_AT_ONCE]
            await self._nodes.create_intermediate_nodes(self._conn, some, self._conn.deadline())


def _depth(path: str) -> int:
    return path.count("/")


def _create(path: str, data: bytes, acl: bytes) -> Step:
    return path, jute.part(Op.CREATE, jute.create_body(path, data, ephemeral=False, acl=acl))


def _set(path: str, data: bytes | None, version: int) -> Step:
    return path, jute.part(Op.SET_DATA, jute.set_body(path, data, version))


def _delete(path: str, version: int) -> Step:
    return path, jute.part(Op.DELETE, jute.version_body(path, version))
