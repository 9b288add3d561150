"""The topics of a namespace consumer: opened when they appear, closed when they disappear.

A topic that cannot be opened is tried again without a limit and does not stop the others. A topic that appears after
the consumer was opened is read from its beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from anabranch.client.consumer.topic_part import TopicPart
from anabranch.client.context import ClientContext
from anabranch.client.errors import ClientError
from anabranch.client.topic.namespace_watch import NamespaceWatch
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

OPENING_MAX = 64
"""Topics that are opened at the same time."""


@dataclass(frozen=True, slots=True)
class NamespaceTopicsSpec:
    """Which topics a consumer reads."""

    namespace: str
    topic_properties: Mapping[str, str] = field(default_factory=dict)


class PartOwner(Protocol):
    """The consumer."""

    async def open_part(
        self, topic: TopicName, timeout_s: float, *, creates: bool = True, is_new: bool = False
    ) -> TopicPart: ...

    async def wait_attached(self, part: TopicPart, timeout_s: float) -> None:
        """Returns when its segments are attached."""

    async def close_part(self, part: TopicPart) -> None: ...


class NamespaceTopics:
    def __init__(
        self, spec: NamespaceTopicsSpec, owner: PartOwner, context: ClientContext, tasks: TaskOwner, timeout_s: float
    ) -> None:
        self.spec = spec
        self._owner = owner
        self._context = context
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._kept: dict[str, asyncio.Task[None] | None] = {}  # what keeps each topic open
        self._failures: dict[str, asyncio.Future[ClientError]] = {}  # of open topics; set when one fails
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self._is_open = False
        self._untried: set[str] = set()  # of the first list
        self._tried = asyncio.Event()

    async def open(self) -> None:
        """Returns when each topic of the first list was opened, or has failed once."""
        clock = self._context.clock
        deadline = clock.monotonic() + self._timeout_s
        watch = NamespaceWatch(self.spec.namespace, self.spec.topic_properties, self._on_change, self._context)
        self._tasks.spawn(watch.run(), "namespace")
        await watch.wait_first(self._timeout_s)
        self._is_open = True
        try:
            async with asyncio.timeout(max(0.0, deadline - clock.monotonic())):
                while self._untried:
                    self._tried.clear()
                    await self._tried.wait()
        except TimeoutError:
            log.warning(
                "some topics of a namespace are not open yet; the consumer goes on to open them",
                extra={"namespace": self.spec.namespace, "topics": len(self._untried)},
            )

    def failed(self, topic: str, error: ClientError) -> None:
        """An open topic cannot be read: it is closed and opened again."""
        failure = self._failures.get(topic)
        if failure is not None and not failure.done():
            failure.set_result(error)

    def covers(self, topic: str) -> bool:
        """Whether this may be a topic of the namespace, open or not."""
        return bool(topic) and TopicName.parse(topic).namespace_path == self.spec.namespace

    def _on_change(self, added: frozenset[str], removed: frozenset[str]) -> None:
        for topic in removed:
            task = self._kept.pop(topic, None)
            if task is not None:
                task.cancel()
            self._note_tried(topic)
        for topic in sorted(added):
            if not self._is_open:
                self._untried.add(topic)
            self._kept[topic] = self._tasks.spawn(self._keep(topic, is_new=self._is_open), f"keep {topic}")

    async def _keep(self, topic: str, *, is_new: bool) -> None:
        context, attempt = self._context, 0
        while True:
            part: TopicPart | None = None
            self._failures[topic] = failure = asyncio.get_running_loop().create_future()
            try:
                async with self._opening:
                    part = await self._owner.open_part(
                        TopicName.parse(topic), self._timeout_s, creates=False, is_new=is_new
                    )
                    opened = asyncio.ensure_future(self._owner.wait_attached(part, self._timeout_s))
                    try:
                        await asyncio.wait((opened, failure), return_when=asyncio.FIRST_COMPLETED)
                        if opened.done():
                            opened.result()
                            attempt = 0
                    finally:
                        opened.cancel()
                self._note_tried(topic)
                error = await failure
            except Error as refused:
                error = refused if isinstance(refused, ClientError) else ClientError(refused.reason)
            finally:
                if self._failures.get(topic) is failure:
                    del self._failures[topic]
                if part is not None:
                    await asyncio.shield(self._owner.close_part(part))
            self._note_tried(topic)
            delay = context.backoff.delay(attempt, context.chance.random())
            log.warning(
                "a topic of a namespace cannot be read; it will be opened again",
                extra={"topic": topic, "reason": error.reason, "delay_s": delay},
            )
            await context.clock.sleep(delay)
            attempt += 1

    def _note_tried(self, topic: str) -> None:
        self._untried.discard(topic)
        self._tried.set()
