"""One key at a time: how get, put and delete of the port become requests. Knows connections, not sessions or watches.

A node without data (None, not empty) only holds others. Holders are persistent nodes, not containers: the server would
remove a container that has become a real key as soon as its last child goes. Empty ones are removed here instead.
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
from anabranch.metadata.zookeeper.paths import Keys, below
from anabranch.metadata.zookeeper.records import Known, dressed, is_holder, lifts, version_of
from anabranch.model.errors import BadRequest
from anabranch.zookeeper import jute
from anabranch.zookeeper.channel import Answer
from anabranch.zookeeper.connection import Connection
from anabranch.zookeeper.jute import Code, Node, Op, ServerError, Stat

TRIES_MAX = 50  # each lost try means that somebody else's write went through
LIFTS_MAX = 2_000
REPLACE_BYTES_MAX = 1_000_000
EXISTS_AT_ONCE = 500
LOOK_BELOW = 16

_RACED = (Code.NO_NODE, Code.BAD_VERSION, Code.NODE_EXISTS)


class Nodes:
    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.numbering = Numbering()
        self.known = Known()
        self.on_emptied: Callable[[str], None] = lambda path: None
        """Told of a path below which something vanished: its parents may be empty holders now."""

    async def read(self, conn: Connection, path: str, deadline: float) -> Node | None:
        """As it is at this server; a holder counts."""
        (answer,) = await conn.call_all([jute.get_data(path)], deadline)
        return self._found(path, answer)

    def _found(self, path: str, answer: Answer | ServerError) -> Node | None:
        if isinstance(answer, ServerError):
            if answer.number == Code.NO_NODE:
                return None
            raise answer
        node = jute.node_of(answer.body)
        self.known.saw(path, node.data, node.stat)
        return node

    async def put(
        self, conn: Connection, key: str, value: bytes, expected: Expected, owner: int, deadline: float
    ) -> Stat:
        """`owner` is the session of `conn`, or 0."""
        path = self._keys.path(key)
        is_missing = False
        if expected is ABSENT:
            stat = await self._create(conn, path, wrap_raw(value), owner, deadline)
            if stat is not None:
                return stat
        elif (number := self.known.version_for(path, expected, owner, self.numbering)) is not None:
            outcome = await self._set(conn, path, wrap_raw(value), number, deadline)
            if isinstance(outcome, Stat):
                return outcome
            is_missing = outcome == Code.NO_NODE
        for _ in range(TRIES_MAX):
            node = None if is_missing else await self._read_newest(conn, path, deadline)
            is_missing = False
            decide_put(key, expected, version_of(node, self.numbering))
            stat = await self._write_over(conn, path, dressed(value, node, owner), node, owner, deadline)
            if stat is not None:
                return stat
        raise StoreUnavailable(f"{key}: others wrote first, {TRIES_MAX} times")

    async def delete(self, conn: Connection, key: str, expected: Expected, deadline: float) -> None:
        path = self._keys.path(key)
        for _ in range(TRIES_MAX):
            node = await self._read_newest(conn, path, deadline)
            decide_delete(key, expected, version_of(node, self.numbering))
            assert node is not None
            if node.stat.child_count:
                outcome = await self._set(conn, path, None, node.stat.version, deadline)
                if isinstance(outcome, Stat):
                    if not outcome.child_count:
                        self.on_emptied(below(path, ""))
                    return
            elif await self._remove(conn, path, node.stat.version, deadline):
                self.on_emptied(path)
                return
        raise StoreUnavailable(f"{key}: others wrote first, {TRIES_MAX} times")

    async def make_holders(self, conn: Connection, paths: Sequence[str], deadline: float) -> None:
        for path, answer in zip(
            paths, await conn.call_all([jute.create_holder(path) for path in paths], deadline), strict=True
        ):
            if not isinstance(answer, ServerError):
                self.known.saw_holder(path)
            elif answer.number not in (Code.NODE_EXISTS, Code.NO_NODE):
                raise _readable(answer, path)

    async def children(self, conn: Connection, path: str, skip: Callable[[str], bool]) -> list[str]:
        """Paths of nodes directly below that are keys or have keys below."""
        deadline = conn.deadline()
        found = [one for one in await self._names(conn, path, deadline) if not skip(one)]
        real, doubtful = await self._sorted_out(conn, found, deadline)
        used = await asyncio.gather(*(self._has_keys(conn, one, deadline) for one in doubtful))
        real.extend(one for one, is_used in zip(doubtful, used, strict=True) if is_used)
        return real

    async def remove_empty(self, conn: Connection, path: str) -> None:
        """Remove the holders above `path` that hold nothing any more."""
        deadline = conn.deadline()
        above = self._keys.parent(path)
        while above is not None:
            node = await self.read(conn, above, deadline)
            if node is not None:
                if not is_holder(node) or node.stat.child_count:
                    return
                if not await self._remove(conn, above, node.stat.version, deadline):
                    return
            above = self._keys.parent(above)

    async def overwrite(self, conn: Connection, path: str, data: bytes, node: Node) -> bool:
        """Make it a record without session; False: it is not any more as it was read."""
        return await self._write_over(conn, path, data, node, 0, conn.deadline()) is not None

    # Steps: each is one round trip ------------------------------------------------------------------------------------

    async def _read_newest(self, conn: Connection, path: str, deadline: float) -> Node | None:
        _, answer = await conn.call_all([jute.sync(path), jute.get_data(path)], deadline)
        return self._found(path, answer)

    async def _create(self, conn: Connection, path: str, data: bytes, owner: int, deadline: float) -> Stat | None:
        """None: somebody else's node is in the way or the parents vanished again."""
        request = jute.create(path, data, ephemeral=owner != 0)
        (answer,) = await conn.call_all([request], deadline)
        if isinstance(answer, ServerError) and answer.number == Code.NO_NODE:
            parents = self._keys.parents(path)
            *made, answer = await conn.call_all([*map(jute.create_holder, parents), request], deadline)
            for one, done in zip(parents, made, strict=True):
                if not isinstance(done, ServerError):
                    self.known.saw_holder(one)
        if isinstance(answer, ServerError):
            if answer.number in _RACED:
                return None
            raise _readable(answer, path)
        stat = jute.created_of(answer.body)
        self.known.saw(path, data, stat)
        return stat

    async def _set(self, conn: Connection, path: str, data: bytes | None, version: int, deadline: float) -> Stat | int:
        """What it left, or why it did nothing: NO_NODE or BAD_VERSION."""
        (answer,) = await conn.call_all([jute.set_data(path, data, version)], deadline)
        if isinstance(answer, ServerError):
            if answer.number in _RACED:
                return answer.number
            raise _readable(answer, path)
        stat = jute.stat_of(answer.body)
        self.known.saw(path, data, stat)
        return stat

    async def _remove(self, conn: Connection, path: str, version: int, deadline: float) -> bool:
        (answer,) = await conn.call_all([jute.delete(path, version)], deadline)
        if isinstance(answer, ServerError):
            if answer.number in (*_RACED, Code.NOT_EMPTY):
                return False
            raise _readable(answer, path)
        self.known.forget(path)
        return True

    async def _write_over(
        self, conn: Connection, path: str, data: bytes, node: Node | None, owner: int, deadline: float
    ) -> Stat | None:
        """None: the node is not any more as it was read."""
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
        """Another node in its place, in one step, with a version above the old one's; or the error number."""
        again = jute.part(Op.SET_DATA, jute.set_body(path, b"", -1))
        count = lifts(old, len(again), REPLACE_BYTES_MAX - len(data) - 6 * len(again), LIFTS_MAX)
        parts = [
            jute.part(Op.DELETE, jute.version_body(path, old.version)),
            jute.part(Op.CREATE, jute.create_body(path, b"", ephemeral=owner != 0)),
            *[again] * (count - 1),
            jute.part(Op.SET_DATA, jute.set_body(path, data, -1)),
        ]
        results = jute.multi_of((await conn.call(jute.multi(parts), deadline)).body)
        if (blamed := jute.culprit(results)) is not None:
            if blamed[1] in _RACED:
                return blamed[1]
            raise _readable(ServerError(blamed[1]), path)
        stat = results[-1].stat if results else None
        if stat is None:
            raise jute.MalformedAnswer("a multi without its last part")
        self.known.saw(path, data, stat)
        return stat

    # Which names count ------------------------------------------------------------------------------------------------

    async def _names(self, conn: Connection, path: str, deadline: float) -> list[str]:
        try:
            names = jute.children_of((await conn.call(jute.get_children(path), deadline)).body)
        except ServerError as error:
            if error.number == Code.NO_NODE:
                return []
            raise
        return [below(path, name) for name in names]

    async def _sorted_out(self, conn: Connection, paths: Sequence[str], deadline: float) -> tuple[list[str], list[str]]:
        """(keys, holders with something below). Empty holders and what has vanished are neither."""
        real: list[str] = []
        doubtful: list[str] = []
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
                    real.append(path)
                else:
                    dataless.append(path)
            for path, answer in zip(
                dataless, await conn.call_all([jute.get_data(path) for path in dataless], deadline), strict=True
            ):
                if isinstance(answer, ServerError):
                    if answer.number != Code.NO_NODE:
                        raise answer
                elif not is_holder(node := jute.node_of(answer.body)):
                    real.append(path)
                elif node.stat.child_count:
                    doubtful.append(path)
                else:
                    self.on_emptied(below(path, ""))
        return real, doubtful

    async def _has_keys(self, conn: Connection, path: str, deadline: float) -> bool:
        """Is there any key below this holder? Usually the first look says yes."""
        paths = await self._names(conn, path, deadline)
        doubtful: list[str] = []
        for start in range(0, len(paths), LOOK_BELOW):
            real, more = await self._sorted_out(conn, paths[start : start + LOOK_BELOW], deadline)
            if real:
                return True
            doubtful += more
        for one in doubtful:
            if await self._has_keys(conn, one, deadline):
                return True
        return False


def _readable(error: ServerError, path: str) -> Exception:
    if error.number == Code.NO_CHILDREN_FOR_EPHEMERALS:
        return BadRequest(f"{path}: a key cannot lie below an ephemeral one")
    if error.number == Code.NOT_EMPTY:
        return BadRequest(f"{path}: a key with others below it cannot become ephemeral or cease to be")
    return error
