"""Routes an administrative call to the broker that serves a topic, or to all brokers.

The call is a bound method that is marked with `@peer_call`. Where this broker serves the topic, the method is called
directly; otherwise the owner is asked to call it. When the topic moves meanwhile, the call follows it for
`FOLLOW_SECONDS`. Routing may be outdated when the call arrives, so the method itself checks that its topic is here
(`TopicRegistry.get`, `TopicControllers.lead`) and raises ServedElsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.broker.peers import PeerCallRefused, PeerCallUnanswered, PeerNotConnected, call_others
from anabranch.broker.placement import ServedElsewhere
from anabranch.broker.services import Services
from anabranch.interbroker.peer_calls import TOPICS, Method, PeerCall, peer_call_of, results_of
from anabranch.model.errors import Error
from anabranch.model.names import TopicName

FOLLOW_SECONDS = 10.0
RETRY_SECONDS = 0.05
BATCHES_MAX = 16  # peer calls at the same time
BATCH_TOPICS_MAX = 64  # topics of one peer call


class OwnerRouting:
    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services

    async def call_owner(self, topic: TopicName, method: Method, **arguments: Any) -> Any:
        """`method(topic=…, …)` on the broker that serves the topic."""
        arguments = {"topic": str(topic), **arguments}
        services = self._services()
        peers, placement, clock = services.peers, services.placement, services.clock
        if peers is None:
            return await method(**arguments)
        call, until = peer_call_of(method), clock.monotonic() + FOLLOW_SECONDS
        while True:
            await placement.wait_placed(topic)
            try:
                if placement.is_here(topic):
                    return await method(**arguments)
                owner = peers.owner_of(topic)
                if owner is None or owner == peers.me:
                    raise ServedElsewhere(topic, None)
                return await peers.call(owner, call.name, arguments)
            except (ServedElsewhere, PeerCallUnanswered, PeerCallRefused) as error:
                if not _may_repeat(call, error) or clock.monotonic() >= until:
                    raise
            await clock.sleep(RETRY_SECONDS)

    async def call_each(self, topics: Sequence[TopicName], method: Method, **arguments: Any) -> list[Any]:
        """`method(topic=…, …)` for every topic on the broker that serves it, in parallel; results in their order.
        Raises the first failure, after all calls have ended."""
        batches = self._batches(topics, peer_call_of(method))
        found: dict[TopicName, Any] = {}
        for start in range(0, len(batches), BATCHES_MAX):
            some = batches[start : start + BATCHES_MAX]
            calls = (self._call_batch(owner, names, method, arguments) for owner, names in some)
            answers = results_of(await asyncio.gather(*calls, return_exceptions=True))
            for (_, names), results in zip(some, answers, strict=True):
                found.update(zip(names, results, strict=True))
        return [found[topic] for topic in topics]

    def _batches(self, topics: Sequence[TopicName], call: PeerCall) -> list[tuple[str | None, list[TopicName]]]:
        """Topics by owner. None: a topic that is called alone, because it is here or its owner is unknown."""
        peers, placement = self._services().peers, self._services().placement
        batches: list[tuple[str | None, list[TopicName]]] = []
        open_batches: dict[str, list[TopicName]] = {}
        for topic in topics:
            owner = None
            if peers is not None and call.is_idempotent and not placement.is_here(topic):
                owner = peers.owner_of(topic)
            if owner is None:
                batches.append((None, [topic]))
                continue
            names = open_batches.get(owner)
            if names is None or len(names) >= BATCH_TOPICS_MAX:
                names = open_batches[owner] = []
                batches.append((owner, names))
            names.append(topic)
        return batches

    async def _call_batch(
        self, owner: str | None, topics: list[TopicName], method: Method, arguments: Mapping[str, Any]
    ) -> Any:
        """One peer call for many topics; when it fails, one call per topic, which repeats those that were done."""
        peers, call = self._services().peers, peer_call_of(method)
        if owner is not None and peers is not None:
            try:
                return await peers.call(owner, call.name, {**arguments, TOPICS: [str(topic) for topic in topics]})
            except (PeerCallUnanswered, PeerCallRefused) as error:
                if not _may_repeat(call, error):
                    raise
        return [await self.call_owner(topic, method, **arguments) for topic in topics]

    async def call_all(self, method: Method, *, absent_ok: bool = False, **arguments: Any) -> list[Any]:
        """On this broker, then on all others (see `call_others`)."""
        call, here = peer_call_of(method), await method(**arguments)
        peers = self._services().peers
        if peers is None:
            return [here]
        return [here, *await call_others(peers, call.name, arguments, absent_ok=absent_ok)]


def _may_repeat(call: PeerCall, error: Error) -> bool:
    if isinstance(error, PeerCallRefused):
        return error.code == ServedElsewhere.code
    return call.is_idempotent or isinstance(error, ServedElsewhere | PeerNotConnected)
