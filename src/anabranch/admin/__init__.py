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

from anabranch.admin.admin import Admin, connect
from anabranch.admin.client import AdminClient, Answer
from anabranch.admin.errors import AdminError, Refused, Unreachable

__all__ = ["Admin", "AdminClient", "AdminError", "Answer", "Refused", "Unreachable", "connect"]
