"""Placement of names on brokers: a port that the broker's placement implements.

A topic is led by the broker that owns its `topic://` name, as with any other name: no election, key or timer per topic.
If two brokers believe for a while that they own it, leader terms (`topic/leader_terms.py`) decide.
"""

from __future__ import annotations

from typing import Protocol

from anabranch.model.names import TopicName


class Reachable(Protocol):
    """Addresses of a broker for clients."""

    @property
    def service_url(self) -> str: ...

    @property
    def service_url_tls(self) -> str | None: ...


class Place(Protocol):
    def is_here(self, topic: TopicName) -> bool:
        """True if this broker may serve the name (lead the topic) now."""

    def owner_address(self, topic: TopicName) -> Reachable | None:
        """The address of the owner; None: no broker owns the name at the moment."""

    def ownership_epoch(self, topic: TopicName) -> int | None:
        """Changes whenever another broker may have owned the name in between; None: this broker does not own it."""

    def owner_epoch(self, topic: TopicName) -> int:
        """Changes whenever the name has another owner, or another incarnation of the same broker."""

    async def wait_placed(self, topic: TopicName) -> None:
        """Waits while the name moves, until its owner is known or the client's waiting time is over."""
