"""The topic's leader, as its groups need it. `topic/topic_controller.py` implements it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from anabranch.controller.events import Halted, Resumed
from anabranch.controller.group.owner_requests import RequestSender
from anabranch.controller.records.subscription_registry import Registry
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import SegmentRef, SegmentStats
from anabranch.controller.settings import ScalableTopicsSettings


class TopicLeader(RequestSender, Protocol):
    term: int
    settings: ScalableTopicsSettings
    is_over: bool

    @property
    def measure(self) -> Callable[[Sequence[SegmentRef]], Awaitable[Sequence[SegmentStats | None]]]:
        """Returns statistics in the order of the segments; None if the owner did not answer."""

    @property
    def record(self) -> TopicRecord | None: ...

    @property
    def registry(self) -> Registry | None: ...

    def spawn(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Runs `work` as a task that ends with the leader."""

    async def pause(self, failures: int) -> None:
        """Waits before a retry; longer after more failures."""

    async def mark_pending(self) -> bool:
        """Marks the topic in the store as one that needs a leader. False if the store did not confirm it."""

    def group_changed(self) -> None:
        """A group has handled an event: auto-scaling looks at its consumers."""

    def on_group_answer(self, event: Halted | Resumed) -> None:
        """A group answers a Halt or Resume of the subscription workflow."""

    def groups_restored(self) -> None:
        """The groups of the last leader are there again."""
