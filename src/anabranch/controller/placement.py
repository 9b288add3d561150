"""Who leads and who serves what: the port that a broker's placement fills. Knows no cluster.

A topic is led where its `topic://` name is placed, like any other name: no election, no key and no timer per topic.
That two brokers believe to have it for a while is harmless, because terms (`offices.py`) decide.
"""

from __future__ import annotations

from typing import Protocol

from anabranch.model.names import TopicName


class Reachable(Protocol):
    """Where clients reach a broker."""

    @property
    def service_url(self) -> str: ...

    @property
    def service_url_tls(self) -> str | None: ...


class Place(Protocol):
    def is_here(self, topic: TopicName) -> bool:
        """May this broker serve the name (lead the topic) now?"""

    def owner_address(self, topic: TopicName) -> Reachable | None:
        """Who does; None when nobody does at the moment."""

    def ownership_epoch(self, topic: TopicName) -> int | None:
        """Another number whenever somebody else may have had it in between; None: it is not ours."""

    def owner_epoch(self, topic: TopicName) -> int:
        """Of whoever has it: another number whenever that is another broker, or another life of one."""

    async def wait_placed(self, topic: TopicName) -> None:
        """While it changes hands: until it is known who has it, or for as long as a client may be kept."""
