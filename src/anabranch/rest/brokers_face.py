"""What HTTP may ask about brokers. See `face`."""

from __future__ import annotations

from typing import Any, Protocol


class BrokersFace(Protocol):
    async def names(self, cluster: str | None = None) -> list[str]:
        """Host and HTTP port of each; NotFound for another cluster."""

    async def details(self, cluster: str) -> list[dict[str, Any]]: ...

    async def leader(self) -> dict[str, str]: ...

    async def drain(self, cluster: str, broker: str) -> None:
        """Done when it returns; NotReady when it takes longer than a broker may take."""

    async def resume(self, cluster: str, broker: str) -> None: ...

    async def owned(self, cluster: str, broker: str) -> dict[str, Any]: ...

    async def topics(self) -> dict[str, Any]: ...

    def configuration(self) -> dict[str, str]: ...

    def dynamic(self) -> dict[str, str]: ...

    def change(self, setting: str) -> None:
        """NotAllowed: no setting changes while the broker runs."""

    def internal(self) -> dict[str, str]: ...

    async def check_quotas(self) -> None: ...
