"""Brokers: list, health, drain, configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.admin.group import Group, Names, Objects
from anabranch.admin.paths import brokers_url


class Brokers(Group):
    async def list(self, cluster: str | None = None) -> Names:
        """`host:port` of each, of this cluster or of the one given."""
        return await self._names("GET", brokers_url() if cluster is None else brokers_url(cluster))

    async def details(self, cluster: str) -> Objects:
        """With addresses and slots."""
        return await self._objects("GET", brokers_url(cluster, "details"))

    async def leader(self) -> dict[str, Any]:
        """The broker that directs the cluster."""
        return await self._object("GET", brokers_url("leaderBroker"))

    async def owned_namespaces(self, cluster: str, broker: str) -> dict[str, Any]:
        """Bundles that a broker serves."""
        return await self._object("GET", brokers_url(cluster, broker, "ownedNamespaces"))

    async def drain(self, cluster: str, broker: str) -> Any:
        """Moves all its topics to the other brokers."""
        return await self._value("POST", brokers_url(cluster, broker, "drain"))

    async def undrain(self, cluster: str, broker: str) -> Any:
        """Topics may move to it again."""
        return await self._value("DELETE", brokers_url(cluster, broker, "drain"))

    async def health(self) -> str:
        """ "ok", or an error."""
        return await self._text("GET", brokers_url("health"))

    async def ready(self) -> str:
        """`ok` if the broker serves, as its health check."""
        return await self._text("GET", brokers_url("ready"))

    async def version(self) -> str:
        """Version of the broker that answers."""
        return await self._text("GET", brokers_url("version"))

    async def status(self) -> str:
        """For load balancers."""
        return await self._text("GET", "/status.html")

    async def configuration(self, which: str = "runtime") -> Any:
        """ "runtime": every setting without secrets; "values": those that were changed at run time."""
        return await self._value("GET", brokers_url("configuration", which))

    async def dynamic_settings(self) -> Names:
        """Settings that can change at run time."""
        return await self._names("GET", brokers_url("configuration"))

    async def set_dynamic(self, setting: str, value: str) -> None:
        """In force on all brokers, and kept. Refused with the reason for a setting that needs a restart."""
        await self._done("POST", brokers_url("configuration", setting, value))

    async def unset_dynamic(self, setting: str) -> None:
        """Back to the value of each broker's start."""
        await self._done("DELETE", brokers_url("configuration", setting))

    async def internal_configuration(self) -> dict[str, Any]:
        """Where metadata is kept."""
        return await self._object("GET", brokers_url("internal-configuration"))

    async def check_backlog_quotas(self) -> None:
        """Checks the backlog quotas of all topics now."""
        await self._done("GET", brokers_url("backlog-quota-check"))

    async def topic_stats(self) -> Any:
        """Stats of all loaded topics."""
        return await self._value("GET", "/admin/v2/broker-stats/topics")

    async def destinations(self) -> Any:
        """The same: its first name."""
        return await self._value("GET", "/admin/v2/broker-stats/destinations")

    async def metrics_by_labels(self) -> Objects:
        """The samples of `metrics`: `metrics` (name to number) for each set of labels (`dimensions`)."""
        return await self._objects("GET", "/admin/v2/broker-stats/metrics")

    async def metrics(self) -> str:
        """For Prometheus."""
        return await self._text("GET", "/metrics")

    async def allowed(self, calls: Sequence[str]) -> dict[str, Any]:
        """Which calls (`POST /admin/v2/…`) the caller may make, and why not the others: `role`, `readOnly`, `calls`."""
        return await self._object("GET", "/anabranch/v1/access", query={"call": list(calls)})

    async def machines(self) -> Objects:
        """Of each broker: disk, file descriptors, clock, time of a read of the metadata store."""
        return await self._objects("GET", "/anabranch/v1/machines")

    async def operations(self, *, count: int = 100) -> Objects:
        """Changes made over HTTP on all brokers, the newest first."""
        return await self._objects("GET", "/anabranch/v1/operations", query={"count": count})

    async def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return await self._object("GET", "/openapi.json")
