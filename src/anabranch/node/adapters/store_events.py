"""Connects the events of the ledger store with the parts of a node: topics, cluster session, garbage collection."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.storage.interface import IgnoringListener


class StoreEvents(IgnoringListener):
    """The node's `StoreListener`."""

    def __init__(
        self,
        topics: TopicRegistry,
        *,
        fenced: Callable[[], None],
        may_confirm: Callable[[], bool] | None,
        batches: Callable[[int], None] | None,
    ) -> None:
        """`may_confirm`: only in a cluster. `batches` gets the number of batches of each durable group."""
        self._topics = topics
        self._fenced = fenced
        self._may_confirm = may_confirm
        self._batches = batches

    def may_confirm(self) -> bool:
        return self._may_confirm is None or self._may_confirm()

    def on_group_end(self) -> None:
        self._topics.group_ended()

    def on_batches(self, count: int) -> None:
        if self._batches is not None:
            self._batches(count)

    def on_fenced(self) -> None:
        self._fenced()
