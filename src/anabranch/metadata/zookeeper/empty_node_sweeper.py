"""Background removal of intermediate nodes without children. The port does not show them, so it may be late."""

from __future__ import annotations

import asyncio

from anabranch.metadata.zookeeper.nodes import Nodes
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.zookeeper.connection import Connection
from anabranch.zookeeper.errors import ZooKeeperError

PATHS_MAX = 10_000  # beyond it paths are dropped; the next listing of their parent adds them again
CLOSE_S = 1.0

log = get_logger(__name__)


class EmptyNodeSweeper:
    def __init__(self, nodes: Nodes, connection: Connection) -> None:
        self._nodes = nodes
        self._connection = connection
        self._parents: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._tasks = TaskOwner("zookeeper-sweeper")

    def add(self, path: str) -> None:
        """The node at `path` was deleted: its parents may be empty now."""
        if len(self._parents) < PATHS_MAX:
            self._parents[path.rpartition("/")[0]] = None
        if self._task is None or self._task.done():
            self._task = self._tasks.spawn(self._sweep(), "sweep")

    async def _sweep(self) -> None:
        while self._parents:
            parent = next(iter(self._parents))
            del self._parents[parent]
            try:
                await self._nodes.remove_empty(self._connection, f"{parent}/")
            except ZooKeeperError as error:
                log.info("empty ZooKeeper nodes not removed", extra={"path": parent, "reason": str(error)})

    async def close(self) -> None:
        await self._tasks.drain(CLOSE_S)
        await self._tasks.close()
