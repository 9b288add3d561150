"""The other brokers of the cluster: the port through which this broker calls them. The node implements it.

A *peer call* has a name (`care.trim`) and plain JSON values as arguments and result. `peer_calls` has the calls that a
broker serves.
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
    """A broker that is registered."""

    id: str
    address: Address
    version: str
    started_ms: int
    slots: int  # of how many hash ranges it serves the topics
    load: float
    is_draining: bool
    is_leader: bool


class BrokerPeers(Protocol):
    @property
    def me(self) -> str:
        """This broker's id."""

    def check_valid(self) -> None:
        """Raises NotReady while this broker may confirm nothing: its session is over, or may be."""

    def others(self) -> list[str]:
        """Ids of all the others that are registered."""

    async def facts(self) -> list[BrokerFacts]:
        """Everybody, ourselves included, by id."""

    def owner_of(self, topic: TopicName) -> str | None:
        """Who serves it; None: nobody at the moment."""

    async def call(self, broker: str, name: str, arguments: Mapping[str, Any]) -> Any:
        """Raises ErrandRefused, NotConnected or NoAnswer (also when the broker is replaced meanwhile)."""

    async def drain(self) -> bool:
        """This broker gives everything away and takes nothing; True when all is given."""

    async def resume(self) -> None:
        """It takes its share again."""

    async def move(self, span: tuple[int, int], broker: str) -> None:
        """Topics whose hash is in the span (as bundles are named) are served by that broker when this returns."""


async def call_others(
    peers: BrokerPeers, name: str, arguments: Mapping[str, Any], *, absent_ok: bool = False
) -> list[Any]:
    """Every other broker, all at once. `absent_ok`: one that cannot be reached or has been replaced serves nothing and
    has nothing to say."""

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
