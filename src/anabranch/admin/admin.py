"""`anabranch.admin.connect(url)`: all admin calls, for asyncio. Makes the requests and follows redirects."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anabranch.admin.brokers import Brokers
from anabranch.admin.client import (
    DEFAULT_URL,
    REDIRECTS_MAX,
    TIMEOUT_SECONDS,
    Answer,
    Origin,
    checked_tls,
    refusal,
    request_of,
)
from anabranch.admin.errors import Unreachable
from anabranch.admin.http import HttpConnections
from anabranch.admin.ledgers import Ledgers
from anabranch.admin.metadata_migration import MetadataMigration
from anabranch.admin.namespaces import Namespaces
from anabranch.admin.redirect import redirected
from anabranch.admin.scalable import ScalableTopics, Segments
from anabranch.admin.schemas import Schemas
from anabranch.admin.subscriptions import Subscriptions
from anabranch.admin.tenants import Clusters, Tenants
from anabranch.admin.topic_policies import TopicPolicies
from anabranch.admin.topics import Topics
from anabranch.runtime.credentials import Credentials, Tls, token_credentials


class Admin:
    """Calls in groups: `admin.tenants`, `.namespaces`, `.topics`, `.subscriptions`, `.schemas`, `.brokers`,
    `.clusters`, `.topic_policies`, `.scalable_topics`, `.segments`, `.metadata_migration`, `.ledgers`. Opens nothing
    before the first call; many tasks may use it."""

    def __init__(
        self, url: str, *, credentials: Credentials | None, tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        self._origin = Origin.parse(url)
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._connections = HttpConnections(tls)
        self.tenants = Tenants(self)
        self.clusters = Clusters(self)
        self.namespaces = Namespaces(self)
        self.topics = Topics(self)
        self.topic_policies = TopicPolicies(self)
        self.subscriptions = Subscriptions(self)
        self.schemas = Schemas(self)
        self.brokers = Brokers(self)
        self.scalable_topics = ScalableTopics(self)
        self.segments = Segments(self)
        self.metadata_migration = MetadataMigration(self)
        self.ledgers = Ledgers(self)

    @property
    def url(self) -> str:
        """The address that was given."""
        return self._origin.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; safe to repeat."""
        await self._connections.close()

    async def call(self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None) -> Answer:
        """Any request, for paths without a method. `path` is encoded. Bytes are sent unchanged, anything else but None
        as JSON. Raises AdminError."""
        target, data, headers = request_of(self._origin, method, path, body, query, self._credentials)
        at = self._origin.place
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in range(REDIRECTS_MAX):
                    answer = await self._connections.exchange(at, method, target, data, headers)
                    if answer.status not in (307, 308):
                        break
                    location = answer.headers.get("location", "")
                    at, target = redirected(at, location, has_secret="Authorization" in headers)
                else:
                    raise Unreachable(f"{self.url}: too many redirects")
        except TimeoutError as error:
            raise Unreachable(f"no answer from {at}: timed out") from error
        if answer.status >= 300:
            raise refusal(answer)
        return answer


def connect(
    url: str = DEFAULT_URL,
    *,
    token: str | Path | Callable[[], str] | None = None,
    auth: Credentials | None = None,
    tls: Tls | ssl.SSLContext | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Admin:
    """`async with anabranch.admin.connect("http://localhost:8080") as admin`.

    `token` is a string, a file (as a Path) or a function; `auth` another authentication method (`anabranch.Basic`).
    `url` may be any broker of a cluster: it redirects to the one that serves a topic. `timeout` is per call, in
    seconds.
    """
    return Admin(url, credentials=auth or token_credentials(token), tls=checked_tls(tls), timeout_s=timeout)
