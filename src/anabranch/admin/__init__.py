"""Administration over HTTP, of Anabranch and of Apache Pulsar.

    async with anabranch.admin.connect("http://localhost:8080") as admin:
        await admin.topics.create("orders", partitions=4)

`anabranch.admin.blocking.connect` has the same names without await.

| module | what it is |
|---|---|
| `admin` | `connect`; requests for asyncio, redirects, deadlines |
| `tenants` `namespaces` `topics` `subscriptions` `schemas` `brokers` `scalable` | the calls, in groups |
| `topic_policies` | policies of single topics |
| `metadata_migration` | moving the metadata to another store |
| `ledgers` | ledgers on Apache BookKeeper |
| `group` | base of the groups: one request, one answer of the expected type |
| `paths` | paths of the REST API |
| `http` | pool of asyncio connections |
| `redirect` | where a redirect leads, and whether credentials may go there |
| `client` | blocking requests, for the command line and `blocking` |
| `errors` | why a call failed, with a hint |
| `blocking/` | the groups without await, generated |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anabranch.admin.admin import Admin, connect
from anabranch.admin.client import AdminClient, Answer
from anabranch.admin.errors import AdminError, Refused, Unreachable

if TYPE_CHECKING:
    from anabranch.admin import blocking

__all__ = ["Admin", "AdminClient", "AdminError", "Answer", "Refused", "Unreachable", "blocking", "connect"]


def __getattr__(name: str) -> Any:
    """Imports `anabranch.admin.blocking` when it is first used."""
    if name != "blocking":
        raise AttributeError(f"module 'anabranch.admin' has no attribute {name!r}")
    import importlib

    return importlib.import_module("anabranch.admin.blocking")
