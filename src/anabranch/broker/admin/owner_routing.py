"""Administrative work done where it can be done: by the broker that serves a topic, or by all of them.

Each group of calls (topics, cursors, namespaces …) has one: what is ours is called directly, what is another broker's
becomes an errand. A topic that moves meanwhile is followed for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.broker.peers import PeerCallRefused, PeerCallUnanswered, PeerNotConnected, call_others
from anabranch.broker.placement import ServedElsewhere
from anabranch.broker.services import Services
from anabranch.model.errors import Error, NotFound
from anabranch.model.names import TopicName

FOLLOW_SECONDS = 10.0
AGAIN_SECONDS = 0.05
TOGETHER = 16  # errands under way at a time
BATCH_MAX = 64  # topics of one errand
TOPICS = "topics"


class OwnerRouting:
    def __init__(
        self,
        services: Callable[[], Services],
        group: str,
        here: object,
        errands: frozenset[str],
        once: frozenset[str] = frozenset(),
    ) -> None:
        """`here` has the methods that `errands` names; they take and return plain JSON values. All but `once` may be
        done again when nobody knows whether they were done."""
        self._services = services
        self._group = group
        self._here = here
        self._errands = errands
        self._once = once

    async def do(self, call: str, arguments: Mapping[str, Any]) -> Any:
        """On this broker; NotFound for what is no errand. With `topics` for each of them, answers in their order."""
        if call not in self._errands:
            raise NotFound(f"no errand {self._group}.{call}")
        method = getattr(self._here, call)
        if TOPICS not in arguments:
            return await method(**arguments)
        rest = {name: value for name, value in arguments.items() if name != TOPICS}
        asked = (method(topic=topic, **rest) for topic in arguments[TOPICS])
        return _all(await asyncio.gather(*asked, return_exceptions=True))

    async def call_owner(self, topic: TopicName, call: str, **arguments: Any) -> Any:
        """Where the topic (its name is the call's first argument) is served, wherever that is by then."""
        arguments = {"topic": str(topic), **arguments}
        services = self._services()
        peers, placement, clock = services.peers, services.placement, services.clock
        if peers is None:
            return await self.do(call, arguments)
        until = clock.monotonic() + FOLLOW_SECONDS
        while True:
            await placement.wait_placed(topic)
            try:
                if placement.is_here(topic):
                    return await self.do(call, arguments)
                owner = peers.owner_of(topic)
                if owner is None or owner == peers.me:
                    raise ServedElsewhere(topic, None)
                return await peers.call(owner, f"{self._group}.{call}", arguments)
            except (ServedElsewhere, PeerCallUnanswered, PeerCallRefused) as error:
                if not self._may_repeat(call, error) or clock.monotonic() >= until:
                    raise
            await clock.sleep(AGAIN_SECONDS)

    def _may_repeat(self, call: str, error: Error) -> bool:
        if isinstance(error, PeerCallRefused):
            return error.code == ServedElsewhere.code
        return call not in self._once or isinstance(error, ServedElsewhere | PeerNotConnected)

    async def each(self, topics: Sequence[TopicName], call: str, **arguments: Any) -> list[Any]:
        """For every topic where it is served, many at a time; answers in their order. The first failure is told."""
        batches = self._batches(topics, call)
        found: dict[TopicName, Any] = {}
        for start in range(0, len(batches), TOGETHER):
            some = batches[start : start + TOGETHER]
            asked = (self._batch(owner, names, call, arguments) for owner, names in some)
            for (_, names), answers in zip(
                some, _all(await asyncio.gather(*asked, return_exceptions=True)), strict=True
            ):
                found.update(zip(names, answers, strict=True))
        return [found[topic] for topic in topics]

    def _batches(self, topics: Sequence[TopicName], call: str) -> list[tuple[str | None, list[TopicName]]]:
        """By owner as far as it is known; None: each topic on its own."""
        peers, placement = self._services().peers, self._services().placement
        batches: list[tuple[str | None, list[TopicName]]] = []
        open_ones: dict[str, list[TopicName]] = {}
        for topic in topics:
            owner = None
            if peers is not None and call not in self._once and not placement.is_here(topic):
                owner = peers.owner_of(topic)
            if owner is None:
                batches.append((None, [topic]))
                continue
            names = open_ones.get(owner)
            if names is None or len(names) >= BATCH_MAX:
                names = open_ones[owner] = []
                batches.append((owner, names))
            names.append(topic)
        return batches

    async def _batch(self, owner: str | None, topics: list[TopicName], call: str, arguments: Mapping[str, Any]) -> Any:
        """One errand for many topics; one by one where that did not work out (they may be done twice then)."""
        peers = self._services().peers
        if owner is not None and peers is not None:
            try:
                wanted = {**arguments, TOPICS: [str(topic) for topic in topics]}
                return await peers.call(owner, f"{self._group}.{call}", wanted)
            except (PeerCallUnanswered, PeerCallRefused) as error:
                if not self._may_repeat(call, error):
                    raise
        return [await self.call_owner(topic, call, **arguments) for topic in topics]

    async def everywhere(self, call: str, arguments: Mapping[str, Any], *, absent_ok: bool = False) -> list[Any]:
        """On this broker, then on all others (see `call_others`)."""
        peers = self._services().peers
        here = await self.do(call, arguments)
        if peers is None:
            return [here]
        return [here, *await call_others(peers, f"{self._group}.{call}", arguments, absent_ok=absent_ok)]


def _all(outcomes: Sequence[Any]) -> list[Any]:
    """Everything was waited for before the first failure is told."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return list(outcomes)
