"""The brokers of the cluster, as far as this one knows: the port that the node fills. Alone there is no fleet.

An *errand* is a call that one broker makes at another one in an administrator's name: a group and a method
(`care.trim`) with plain JSON values. Which ones there are is said by the classes that do them (`ERRANDS`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.broker.placement import Address
from anabranch.model.errors import Error, NotReady
from anabranch.model.names import TopicName


class PeerCallRefused(Error):
    """Another broker said no; code, reason and HTTP status are its own."""

    def __init__(self, code: str, reason: str, status: int) -> None:
        super().__init__(reason)
        self.code = code
        self.status = status
        self.retryable = code in ("not-ready", "served-elsewhere", "metadata-unavailable")


class PeerCallUnanswered(NotReady):
    """Another broker did not answer: what it was asked for may or may not have happened."""

    code = "broker-unreachable"


class PeerNotConnected(PeerCallUnanswered):
    """It could not be reached at all: nothing has happened there."""


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
