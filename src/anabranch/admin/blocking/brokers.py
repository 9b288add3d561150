"""The blocking form of `anabranch.admin.brokers`. Written by scripts/generate_blocking_admin.py; edit
that module, not this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.admin.blocking.group import Group, Names, Objects
from anabranch.admin.paths import brokers_url


class Brokers(Group):
    def list(self, cluster: str | None = None) -> Names:
        """`host:port` of each, of this cluster or of the one given."""
        return self._names("GET", brokers_url() if cluster is None else brokers_url(cluster))

    def details(self, cluster: str) -> Objects:
        """With addresses and slots."""
        return self._objects("GET", brokers_url(cluster, "details"))

    def leader(self) -> dict[str, Any]:
        """The broker that directs the cluster."""
        return self._object("GET", brokers_url("leaderBroker"))

    def owned_namespaces(self, cluster: str, broker: str) -> dict[str, Any]:
        """Bundles that a broker serves."""
        return self._object("GET", brokers_url(cluster, broker, "ownedNamespaces"))

    def drain(self, cluster: str, broker: str) -> Any:
        """Moves all its topics to the other brokers."""
        return self._value("POST", brokers_url(cluster, broker, "drain"))

    def undrain(self, cluster: str, broker: str) -> Any:
        """Topics may move to it again."""
        return self._value("DELETE", brokers_url(cluster, broker, "drain"))

    def health(self) -> str:
        """ "ok", or an error."""
        return self._text("GET", brokers_url("health"))

    def ready(self) -> str:
        """`ok` if the broker serves, as its health check."""
        return self._text("GET", brokers_url("ready"))

    def version(self) -> str:
        """Version of the broker that answers."""
        return self._text("GET", brokers_url("version"))

    def status(self) -> str:
        """For load balancers."""
        return self._text("GET", "/status.html")

    def configuration(self, which: str = "runtime") -> Any:
        """ "runtime": every setting without secrets; "values": those that were changed at run time."""
        return self._value("GET", brokers_url("configuration", which))

    def dynamic_settings(self) -> Names:
        """Settings that can change at run time."""
        return self._names("GET", brokers_url("configuration"))

    def set_dynamic(self, setting: str, value: str) -> None:
        """In force on all brokers, and kept. Refused with the reason for a setting that needs a restart."""
        self._done("POST", brokers_url("configuration", setting, value))

    def unset_dynamic(self, setting: str) -> None:
        """Back to the value of each broker's start."""
        self._done("DELETE", brokers_url("configuration", setting))

    def internal_configuration(self) -> dict[str, Any]:
        """Where metadata is kept."""
        return self._object("GET", brokers_url("internal-configuration"))

    def check_backlog_quotas(self) -> None:
        """Checks the backlog quotas of all topics now."""
        self._done("GET", brokers_url("backlog-quota-check"))

    def topic_stats(self) -> Any:
        """Stats of all loaded topics."""
        return self._value("GET", "/admin/v2/broker-stats/topics")

    def destinations(self) -> Any:
        """The same: its first name."""
        return self._value("GET", "/admin/v2/broker-stats/destinations")

    def metrics_by_labels(self) -> Objects:
        """The samples of `metrics`: `metrics` (name to number) for each set of labels (`dimensions`)."""
        return self._objects("GET", "/admin/v2/broker-stats/metrics")

    def metrics(self) -> str:
        """For Prometheus."""
        return self._text("GET", "/metrics")

    def allowed(self, calls: Sequence[str]) -> dict[str, Any]:
        """Which calls (`POST /admin/v2/…`) the caller may make, and why not the others: `role`, `readOnly`, `calls`."""
        return self._object("GET", "/anabranch/v1/access", query={"call": list(calls)})

    def machines(self) -> Objects:
        """Of each broker: disk, file descriptors, clock, time of a read of the metadata store."""
        return self._objects("GET", "/anabranch/v1/machines")

    def operations(self, *, count: int = 100) -> Objects:
        """Changes made over HTTP on all brokers, the newest first."""
        return self._objects("GET", "/anabranch/v1/operations", query={"count": count})

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return self._object("GET", "/openapi.json")
