"""Single keys: get, put and delete of the port as ZooKeeper requests.

Intermediate nodes are persistent, not containers: the server would delete a container that has become a key as soon as
its last child is deleted. This store removes empty ones itself (`empty_node_sweeper.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from anabranch.metadata.envelope import Numbering, wrap_raw
from anabranch.metadata.interface import (
    ABSENT,
    Expected,
    StoreUnavailable,
    decide_delete,
    decide_put,
)
from anabranch.metadata.zookeeper.paths import PathMapping, child_path
from anabranch.metadata.zookeeper.records import (
    RecentNodes,
    encode_record,
    is_intermediate,
    rewrites_needed,
    version_of,
)
from anabranch.model.errors import BadRequest
from anabranch.zookeeper import jute
from anabranch.zookeeper.channel import Answer
from anabranch.zookeeper.connection import Connection
from anabranch.zookeeper.errors import Code, MalformedAnswer, ServerError
from anabranch.zookeeper.jute import OPEN_ACL, Node, Op, Stat

ATTEMPTS_MAX = 50  # each failed attempt means that another write succeeded
REWRITES_MAX = 2_000
REPLACE_BYTES_MAX = 1_000_000
EXISTS_AT_ONCE = 500
DESCENDANTS_AT_ONCE = 16

_RACED = (Code.NO_NODE, Code.BAD_VERSION, Code.NODE_EXISTS)


class Nodes:
    """`on_deleted` is called with the path of a deleted node: its parents may be empty intermediate nodes now."""

    def __init__(self, keys: PathMapping, on_deleted: Callable[[str], None]) -> None:
        self._keys = keys
        self.acl = OPEN_ACL  # of the nodes that this store creates
        self._on_deleted = on_deleted
        self.numbering = Numbering()
        self.recent = RecentNodes()

    async def read(self, conn: Connection, path: str, deadline: float) -> Node | None:
        """The node as this server has it, also an intermediate one."""
        (answer,) = await conn.call_all([jute.get_data(path)], deadline)
        return self._found(path, answer)

    def _found(self, path: str, answer: Answer | ServerError) -> Node | None:
        if isinstance(answer, ServerError):
            if answer.number == Code.NO_NODE:
                return None
            raise answer
        node = jute.node_of(answer.body)
        self.recent.note(path, node.data, node.stat)
        return node

    async def put(
        self, conn: Connection, key: str, value: bytes, expected: Expected, owner: int, deadline: float
    ) -> Stat:
        """`owner` is the session id of `conn`, or 0."""
        path = self._keys.path(key)
        is_missing = False
        if expected is ABSENT:
            stat = await self._create(conn, path, wrap_raw(value), owner, deadline)
            if stat is not None:
                return stat
        elif (number := self.recent.version_for(path, expected, owner, self.numbering)) is not None:
            outcome = await self._set(conn, path, wrap_raw(value), number, deadline)
            if isinstance(outcome, Stat):
                return outcome
            is_missing = outcome == Code.NO_NODE
        for _ in range(ATTEMPTS_MAX):
            node = None if is_missing else await self._read_newest(conn, path, deadline)
            is_missing = False
            decide_put(key, expected, version_of(node, self.numbering))
            stat = await self._write_over(conn, path, encode_record(value, node, owner), node, owner, deadline)
            if stat is not None:
                return stat
        raise StoreUnavailable(f"{key}: gave up after {ATTEMPTS_MAX} attempts, because other writers were always first")

    async def delete(self, conn: Connection, key: str, expected: Expected, deadline: float) -> None:
        path = self._keys.path(key)
        for _ in range(ATTEMPTS_MAX):
            node = await self._read_newest(conn, path, deadline)
            decide_delete(key, expected, version_of(node, self.numbering))
            assert node is not None
            if node.stat.child_count:
                outcome = await self._set(conn, path, None, node.stat.version, deadline)
                if isinstance(outcome, Stat):
                    if not outcome.child_count:
                        self._on_deleted(child_path(path, ""))
                    return
            elif await self._remove(conn, path, node.stat.version, deadline):
                self._on_deleted(path)
                return
        raise StoreUnavailable(f"{key}: gave up after {ATTEMPTS_MAX} attempts, because other writers were always first")

    async def create_intermediate_nodes(
        self, conn: Connection, paths: Sequence[str], deadline: float, acl: bytes | None = None
    ) -> None:
        acl = acl or self.acl
        for path, answer in zip(
            paths, await conn.call_all([jute.create_intermediate(path, acl) for path in paths], deadline), strict=True
        ):
            if not isinstance(answer, ServerError):
                self.recent.note_intermediate(path)
            elif answer.number not in (Code.NODE_EXISTS, Code.NO_NODE):
                raise _port_error(answer, path)

    async def children(self, conn: Connection, path: str, skip: Callable[[str], bool]) -> list[str]:
        """Paths of direct children that are keys or have keys below."""
        deadline = conn.deadline()
        found = [one for one in await self._names(conn, path, deadline) if not skip(one)]
        keys, candidates = await self._classify(conn, found, deadline)
        used = await asyncio.gather(*(self._has_keys(conn, one, deadline) for one in candidates))
        keys.extend(one for one, is_used in zip(candidates, used, strict=True) if is_used)
        return keys

    async def remove_empty(self, conn: Connection, path: str) -> None:
        """Remove the intermediate nodes above `path` that have no children."""
        deadline = conn.deadline()
        above = self._keys.parent(path)
        while above is not None:
            node = await self.read(conn, above, deadline)
            if node is not None:
                if not is_intermediate(node) or node.stat.child_count:
                    return
                if not await self._remove(conn, above, node.stat.version, deadline):
                    return
            above = self._keys.parent(above)

    async def overwrite(self, conn: Connection, path: str, data: bytes, node: Node) -> bool:
        """Make it a record without session; False if the node changed since it was read."""
        return await self._write_over(conn, path, data, node, 0, conn.deadline()) is not None

    def forget(self, path: str) -> None:
        """The node may have been deleted by a bulk operation."""
        self.recent.forget(path)
        self._on_deleted(path)

    # Steps of one round trip each -------------------------------------------------------------------------------------

    async def _read_newest(self, conn: Connection, path: str, deadline: float) -> Node | None:
        _, answer = await conn.call_all([jute.barrier(), jute.get_data(path)], deadline)
        return self._found(path, answer)

    async def _create(self, conn: Connection, path: str, data: bytes, owner: int, deadline: float) -> Stat | None:
        """None if another node exists there, or if the parents were deleted again."""
        request = jute.create(path, data, ephemeral=owner != 0, acl=self.acl)
        (answer,) = await conn.call_all([request], deadline)
        if isinstance(answer, ServerError) and answer.number == Code.NO_NODE:
            parents = self._keys.parents(path)
            above = [jute.create_intermediate(one, self.acl) for one in parents]
            *made, answer = await conn.call_all([*above, request], deadline)
            for one, done in zip(parents, made, strict=True):
                if not isinstance(done, ServerError):
                    self.recent.note_intermediate(one)
        if isinstance(answer, ServerError):
            if answer.number in _RACED:
                return None
            raise _port_error(answer, path)
        stat = jute.created_of(answer.body)
        self.recent.note(path, data, stat)
        return stat

    async def _set(self, conn: Connection, path: str, data: bytes | None, version: int, deadline: float) -> Stat | int:
        """The new stat, or the error that made it do nothing: NO_NODE or BAD_VERSION."""
        (answer,) = await conn.call_all([jute.set_data(path, data, version)], deadline)
        if isinstance(answer, ServerError):
            if answer.number in _RACED:
                return answer.number
            raise _port_error(answer, path)
        stat = jute.stat_of(answer.body)
        self.recent.note(path, data, stat)
        return stat

    async def _remove(self, conn: Connection, path: str, version: int, deadline: float) -> bool:
        (answer,) = await conn.call_all([jute.delete(path, version)], deadline)
        if isinstance(answer, ServerError):
            if answer.number in (*_RACED, Code.NOT_EMPTY):
                return False
            raise _port_error(answer, path)
        self.recent.forget(path)
        return True

    async def _write_over(
        self, conn: Connection, path: str, data: bytes, node: Node | None, owner: int, deadline: float
    ) -> Stat | None:
        """None if the node changed since it was read."""
        if node is None:
            return await self._create(conn, path, data, owner, deadline)
        outcome = (
            await self._set(conn, path, data, node.stat.version, deadline)
            if node.stat.owner == owner
            else await self._replace(conn, path, data, node.stat, owner, deadline)
        )
        return outcome if isinstance(outcome, Stat) else None

    async def _replace(
        self, conn: Connection, path: str, data: bytes, old: Stat, owner: int, deadline: float
    ) -> Stat | int:
        """Replace the node atomically by one with a higher version; returns the new stat or the error number."""
        again = jute.part(Op.SET_DATA, jute.set_body(path, b"", -1))
        count = rewrites_needed(old, len(again), REPLACE_BYTES_MAX - len(data) - 6 * len(again), REWRITES_MAX)
        parts = [
            jute.part(Op.DELETE, jute.version_body(path, old.version)),
            jute.part(Op.CREATE, jute.create_body(path, b"", ephemeral=owner != 0, acl=self.acl)),
            *[again] * (count - 1),
            jute.part(Op.SET_DATA, jute.set_body(path, data, -1)),
        ]
        results = jute.multi_of((await conn.call(jute.multi(parts), deadline)).body)
        if (failed := jute.failed_part(results)) is not None:
            if failed[1] in _RACED:
                return failed[1]
            raise _port_error(ServerError(failed[1]), path)
        stat = results[-1].stat if results else None
        if stat is None:
            raise MalformedAnswer("a multi without a result for its last part")
        self.recent.note(path, data, stat)
        return stat

    # Listing ----------------------------------------------------------------------------------------------------------

    async def _names(self, conn: Connection, path: str, deadline: float) -> list[str]:
        try:
            names = jute.children_of((await conn.call(jute.get_children(path), deadline)).body)
        except ServerError as error:
            if error.number == Code.NO_NODE:
                return []
            raise
        return [child_path(path, name) for name in names]

    async def _classify(self, conn: Connection, paths: Sequence[str], deadline: float) -> tuple[list[str], list[str]]:
        """(keys, intermediate nodes with children). Empty intermediate nodes and deleted nodes are in neither list."""
        keys: list[str] = []
        intermediate: list[str] = []
        for start in range(0, len(paths), EXISTS_AT_ONCE):
            some = paths[start : start + EXISTS_AT_ONCE]
            dataless: list[str] = []
            for path, answer in zip(
                some, await conn.call_all([jute.exists(path) for path in some], deadline), strict=True
            ):
                if isinstance(answer, ServerError):
                    if answer.number != Code.NO_NODE:
                        raise answer
                elif (stat := jute.stat_of(answer.body)).data_length or stat.owner:
                    keys.append(path)
                else:
                    dataless.append(path)
            for path, answer in zip(
                dataless, await conn.call_all([jute.get_data(path) for path in dataless], deadline), strict=True
            ):
                if isinstance(answer, ServerError):
                    if answer.number != Code.NO_NODE:
                        raise answer
                elif not is_intermediate(node := jute.node_of(answer.body)):
                    keys.append(path)
                elif node.stat.child_count:
                    intermediate.append(path)
                else:
                    self._on_deleted(child_path(path, ""))
        return keys, intermediate

    async def _has_keys(self, conn: Connection, path: str, deadline: float) -> bool:
        """Is there any key below this intermediate node? Usually the first batch answers it."""
        paths = await self._names(conn, path, deadline)
        intermediate: list[str] = []
        for start in range(0, len(paths), DESCENDANTS_AT_ONCE):
            keys, more = await self._classify(conn, paths[start : start + DESCENDANTS_AT_ONCE], deadline)
            if keys:
                return True
            intermediate += more
        for one in intermediate:
            if await self._has_keys(conn, one, deadline):
                return True
        return False


def _port_error(error: ServerError, path: str) -> Exception:
    if error.number == Code.NO_CHILDREN_FOR_EPHEMERALS:
        return BadRequest(f"{path}: a key cannot be created below an ephemeral key")
    if error.number == Code.NOT_EMPTY:
        return BadRequest(f"{path}: a key with keys below it cannot change between ephemeral and persistent")
    return error
