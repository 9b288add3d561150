"""Where topics live, as far as this broker knows. The port that a cluster fills; alone, everything is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anabranch.model.errors import NotReady
from anabranch.model.names import TopicName


@dataclass(frozen=True, slots=True)
class Address:
    """Where clients reach a broker."""

    service_url: str
    http_url: str
    service_url_tls: str | None = None
    http_url_tls: str | None = None

    @property
    def broker_id(self) -> str:
        """As Pulsar names a broker: host and HTTP port."""
        return self.http_url.partition("://")[2]


class ServedElsewhere(NotReady):
    """Look the topic up again. `address` is who serves it now; None: nobody at this moment."""

    code = "served-elsewhere"

    def __init__(self, topic: TopicName, address: Address | None) -> None:
        where = "nobody at the moment" if address is None else address.service_url
        super().__init__(f"{topic} is not served here; served by {where}")
        self.topic, self.address = topic, address


class Placement(Protocol):
    def is_here(self, topic: TopicName) -> bool:
        """May this broker serve the topic now?"""

    def owner_address(self, topic: TopicName) -> Address | None:
        """Who serves it (perhaps we ourselves); None when nobody does at the moment."""

    def ownership_epoch(self, topic: TopicName) -> int | None:
        """Of this broker: another number whenever somebody else may have served it in between; None: it does not."""

    def owner_epoch(self, topic: TopicName) -> int:
        """Of whoever has it: another number whenever that is another broker, or another life of one."""

    async def wait_placed(self, topic: TopicName) -> None:
        """While the topic changes hands: until it is known who serves it, or for as long as a client may be kept.

        An answer that comes a moment later is better than one that sends the client into its back-off.
        """


class EverythingHere:
    """One broker alone."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def is_here(self, topic: TopicName) -> bool:
        return True

    def owner_address(self, topic: TopicName) -> Address | None:
        return self._address

    def ownership_epoch(self, topic: TopicName) -> int | None:
        return 0

    def owner_epoch(self, topic: TopicName) -> int:
        return 0

    async def wait_placed(self, topic: TopicName) -> None:
        return


def check_here(placement: Placement, topic: TopicName) -> None:
    if not placement.is_here(topic):
        raise ServedElsewhere(topic, placement.owner_address(topic))
