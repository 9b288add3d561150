"""What HTTP may ask of a broker about clusters, namespaces and their policies. Namespaces are named `t/n`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol


class NamespaceFace(Protocol):
    async def clusters(self) -> list[str]: ...

    async def cluster(self, name: str) -> dict[str, Any]: ...

    async def save_cluster(self, name: str, data: Mapping[str, Any], create: bool) -> None:
        """AlreadyExists when it is there and `create` is on, NotFound when it is not and `create` is off."""

    async def delete_cluster(self, name: str) -> None:
        """Refused while a tenant or namespace names it."""

    async def check_clusters(self, names: Iterable[str]) -> None:
        """NotAllowed when one of them does not exist."""

    async def record(self, namespace: str) -> dict[str, Any]:
        """Policies as they are stored; NotFound."""

    async def shown(self, namespace: str) -> dict[str, Any]:
        """Policies with everything Pulsar always shows."""

    async def change(self, namespace: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Holds for loaded topics when it returns. `change` may be called again and may raise."""

    async def check_replication(self, tenant: str, names: Iterable[str]) -> None: ...

    async def bundle_of(self, topic: str) -> str: ...

    async def split_bundle(self, namespace: str, bundle: str) -> None: ...

    async def unload(self, namespace: str, bundle: str | None, destination: str | None = None) -> None:
        """`destination`: the broker that serves the bundle afterwards."""

    async def clear_backlog(self, namespace: str, bundle: str | None, subscription: str | None) -> None: ...

    async def unsubscribe(self, namespace: str, bundle: str | None, subscription: str) -> None: ...
