"""`anabranch.admin.blocking.connect(url)`: every admin call without await. The same names, the same errors.

`scripts/generate_blocking_admin.py` writes the modules from the asynchronous ones; a test checks that they agree.

| module | what it is |
|---|---|
| `tenants` `namespaces` `topics` `subscriptions` `schemas` `brokers` `scalable` | the calls, in groups |
| `topic_policies` | policies of single topics |
| `metadata_migration` | moving the metadata to another store |
| `ledgers` | ledgers on Apache BookKeeper |
| `group` | base of the groups |
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anabranch.admin.blocking.brokers import Brokers
from anabranch.admin.blocking.ledgers import Ledgers
from anabranch.admin.blocking.metadata_migration import MetadataMigration
from anabranch.admin.blocking.namespaces import Namespaces
from anabranch.admin.blocking.scalable import ScalableTopics, Segments
from anabranch.admin.blocking.schemas import Schemas
from anabranch.admin.blocking.subscriptions import Subscriptions
from anabranch.admin.blocking.tenants import Clusters, Tenants
from anabranch.admin.blocking.topic_policies import TopicPolicies
from anabranch.admin.blocking.topics import Topics
from anabranch.admin.client import DEFAULT_URL, TIMEOUT_SECONDS, AdminClient, Answer, checked_tls
from anabranch.runtime.credentials import Credentials, Tls

__all__ = ["BlockingAdmin", "connect"]


class BlockingAdmin:
    """Blocking form of Admin. Opens nothing before the first call. Not for use by two threads at once."""

    def __init__(self, requests: AdminClient) -> None:
        self._requests = requests
        self.tenants = Tenants(requests)
        self.clusters = Clusters(requests)
        self.namespaces = Namespaces(requests)
        self.topics = Topics(requests)
        self.topic_policies = TopicPolicies(requests)
        self.subscriptions = Subscriptions(requests)
        self.schemas = Schemas(requests)
        self.brokers = Brokers(requests)
        self.scalable_topics = ScalableTopics(requests)
        self.segments = Segments(requests)
        self.metadata_migration = MetadataMigration(requests)
        self.ledgers = Ledgers(requests)

    @property
    def url(self) -> str:
        """The address that was given."""
        return self._requests.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; safe to repeat."""
        self._requests.close()

    def call(self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None) -> Answer:
        """Any request, for paths without a method."""
        return self._requests.call(method, path, body, query=query)


def connect(
    url: str = DEFAULT_URL,
    *,
    token: str | Path | Callable[[], str] | None = None,
    auth: Credentials | None = None,
    tls: Tls | ssl.SSLContext | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> BlockingAdmin:
    """`with anabranch.admin.blocking.connect("http://localhost:8080") as admin`."""
    return BlockingAdmin(AdminClient(url, token=token, auth=auth, tls=checked_tls(tls), timeout_seconds=timeout))
