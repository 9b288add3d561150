"""The permit of one topic's running operation at the gate of metadata writes.

An operation passes the gate once, as a whole: when metadata is moved to another store, it is done or not begun. Tasks
of the operation share its permit, so that the gate does not stop them half-way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from anabranch.metadata.write_gate import Permit, WriteGate
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)


class OperationPermit:
    """None is held while no operation runs. Without a gate it does nothing."""

    def __init__(self, topic: TopicName, gate: WriteGate | None) -> None:
        self._topic, self._gate = topic, gate
        self._held: tuple[Permit, Context] | None = None

    async def enter(self) -> bool:
        """Called before an operation starts; False if metadata is read-only for too long."""
        if self._gate is None or self._held is not None:
            return True
        try:
            permit = await self._gate.enter()
        except Error as error:
            log.warning(
                "operation waits because metadata is read-only",
                extra={"topic": str(self._topic), "reason": error.reason},
            )
            return False
        self._held = permit, permit.adopt()
        return True

    def leave(self) -> None:
        """Safe to repeat."""
        if self._held is not None and self._gate is not None:
            self._gate.leave(self._held[0])
        self._held = None

    def spawn(self, tasks: TaskOwner, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any] | None:
        """Uses the permit, if one is held."""
        if self._held is None:
            return tasks.spawn(work, name)
        return self._held[1].copy().run(tasks.spawn, work, name)
