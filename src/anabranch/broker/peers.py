"""The other brokers of the cluster: the port through which this broker calls them. The node implements it.

A *peer call* has a name (`care.trim`) and plain JSON values as arguments and result. The calls that a
broker serves are in `admin.peer_calls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.broker.placement import Address
from anabranch.interbroker.errors import PeerCallRefused, PeerCallUnanswered, PeerNotConnected
from anabranch.model.names import TopicName

__all__ = [
    "BrokerFacts",
    "BrokerPeers",
    "PeerCallRefused",
    "PeerCallUnanswered",
    "PeerNotConnected",
    "call_others",
]


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A registered broker."""

    id: str
    address: Address
    version: str
    started_ms: int
    slots: int  # number of slots (hash ranges) that it serves
    load: float
    is_draining: bool
    is_leader: bool


class BrokerPeers(Protocol):
    @property
    def me(self) -> str:
        """This broker's id."""

    def check_valid(self) -> None:
        """Raises NotReady while this broker may confirm nothing, because its session may have ended."""

    def others(self) -> list[str]:
        """Ids of the other registered brokers."""

    async def facts(self) -> list[BrokerFacts]:
        """All registered brokers, this one included, sorted by id."""

    def owner_of(self, topic: TopicName) -> str | None:
        """Id of the broker that serves the topic; None while no broker does."""

    async def call(self, broker: str, name: str, arguments: Mapping[str, Any]) -> Any:
        """Raises PeerCallRefused, PeerNotConnected or PeerCallUnanswered (also if the broker is replaced meanwhile)."""

    async def drain(self) -> bool:
        """Move all topics of this broker to others and accept none; True when all are moved."""

    async def resume(self) -> None:
        """Accept topics again after `drain`."""

    async def move(self, span: tuple[int, int], broker: str) -> None:
        """When this returns, `broker` serves the topics whose hash is in `span` (bounds as in bundle names)."""


async def call_others(
    peers: BrokerPeers, name: str, arguments: Mapping[str, Any], *, absent_ok: bool = False
) -> list[Any]:
    """Call every other broker concurrently. `absent_ok`: brokers that cannot be reached or were replaced are skipped,
    because they serve nothing."""

    async def call(broker: str) -> list[Any]:
        try:
            return [await peers.call(broker, name, arguments)]
        except PeerCallUnanswered as error:
            if absent_ok and (isinstance(error, PeerNotConnected) or broker not in peers.others()):
                return []
            raise

    outcomes = await asyncio.gather(*map(call, peers.others()), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [answer for answers in outcomes if isinstance(answers, list) for answer in answers]
