"""Administration over HTTP, of Anabranch and of Apache Pulsar.

    async with anabranch.admin.connect("http://localhost:8080") as admin:
        await admin.topics.create("orders", partitions=4)

`anabranch.admin.blocking.connect` has the same names without await.

| module                                             | knows                                                  |
|----------------------------------------------------|--------------------------------------------------------|
| `admin`                                            | `connect`; requests for asyncio, redirects, deadlines   |
| `tenants` `namespaces` `topics` `subscriptions` `schemas` `brokers` `scalable` | the calls, in groups       |
| `group` `paths`                                    | what a call is made of; paths                          |
| `http`                                             | sockets and h11                                        |
| `client`                                           | blocking requests, for the command line and the blocking face |
| `blocking`                                         | the groups without await; written by a script          |
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
    """`anabranch.admin.blocking` without an import of its own; loaded when it is first used."""
    if name != "blocking":
        raise AttributeError(f"module 'anabranch.admin' has no attribute {name!r}")
    import importlib

    return importlib.import_module("anabranch.admin.blocking")
