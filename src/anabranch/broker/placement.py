"""Port: which broker serves which topic. A cluster implements it; a single broker uses `EverythingHere`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from anabranch.model.errors import NotAllowed, NotReady
from anabranch.model.names import TopicName


class UnknownListener(NotAllowed):
    """The client asks for addresses of an advertised listener that the broker does not have."""

    code = "unknown-listener"


class Listener(NamedTuple):
    """A name under which a broker gives other addresses to clients, for example outside its network."""

    name: str
    service_url: str | None
    service_url_tls: str | None


@dataclass(frozen=True, slots=True)
class Address:
    """Where clients reach a broker."""

    service_url: str
    http_url: str
    service_url_tls: str | None = None
    http_url_tls: str | None = None
    listeners: tuple[Listener, ...] = ()

    def of_listener(self, name: str | None) -> Address:
        """As this listener advertises it; without a name as it is. Raises UnknownListener."""
        if not name:
            return self
        found = next((one for one in self.listeners if one.name == name), None)
        if found is None:
            names = ", ".join(one.name for one in self.listeners) or "none"
            raise UnknownListener(f"broker {self.broker_id} has no advertised listener {name!r}, it has: {names}")
        url, url_tls = found.service_url, found.service_url_tls
        return replace(self, service_url=url or url_tls or "", service_url_tls=url_tls)

    @property
    def broker_id(self) -> str:
        """As Pulsar names a broker: host and HTTP port."""
        return self.http_url.partition("://")[2]


class ServedElsewhere(NotReady):
    """Another broker serves the topic: look it up again. `address` is its owner; None while there is none."""

    code = "served-elsewhere"

    def __init__(self, topic: TopicName, address: Address | None) -> None:
        where = "no broker at the moment" if address is None else address.service_url
        super().__init__(f"{topic} is not served here; served by {where}")
        self.topic, self.address = topic, address


class Placement(Protocol):
    def is_here(self, topic: TopicName) -> bool:
        """Whether this broker may serve the topic now."""

    def owner_address(self, topic: TopicName) -> Address | None:
        """Address of the owner (perhaps this broker); None while there is none."""

    def ownership_epoch(self, topic: TopicName) -> int | None:
        """Grows whenever another broker may have served the topic in between; None if this broker is not the owner."""

    def owner_epoch(self, topic: TopicName) -> int:
        """Epoch of the current owner: changes with the owner and with each restart of it."""

    async def wait_placed(self, topic: TopicName) -> None:
        """Wait while the topic is being moved, until its owner is known or a deadline passes.

        A late answer is better than an error that makes the client back off.
        """


class EverythingHere:
    """Placement of a single broker: it owns every topic."""

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
