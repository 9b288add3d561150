"""Topics of namespaces that clients watch: persistent and scalable ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from anabranch.broker.catalog.namespace_lists import NamespaceLists, TopicSource
from anabranch.broker.catalog.scalable_lists import ScalableTopicSource
from anabranch.broker.catalog.topic_lists import PersistentTopics
from anabranch.controller.service import ScalableTopicService
from anabranch.node.wiring.stores import Stores
from anabranch.runtime.clock import Clock


async def open_topic_lists(
    stores: Stores, topics: ScalableTopicService | None, clock: Clock, stack: AsyncExitStack
) -> tuple[NamespaceLists, NamespaceLists | None]:
    """Without scalable topics there is no list of them."""

    async def opened(source: Callable[[str], TopicSource]) -> NamespaceLists:
        return await stack.enter_async_context(NamespaceLists(stores.metadata, source, clock))

    persistent = await opened(partial(PersistentTopics, stores.catalog))
    return persistent, None if topics is None else await opened(partial(ScalableTopicSource, topics))
