"""A real node in this event loop, and raw clients connected to it (CONNECT answered)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch.broker.settings import BrokerSettings
from anabranch.node.node import Node
from anabranch.node.settings.node import NetworkSettings, NodeSettings
from anabranch.rest.settings import HttpSettings
from anabranch.storage.settings import StorageSettings
from tests.support.traffic.raw_client import RawClient


@contextlib.asynccontextmanager
async def serving(
    directory: Path, *, sync: str = "none", storage: dict[str, Any] | None = None, **broker: Any
) -> AsyncIterator[Node]:
    settings = NodeSettings(
        network=NetworkSettings(port=0),
        http=HttpSettings(port=0),
        storage=replace(StorageSettings(dir=directory, sync=sync), **(storage or {})),
        broker=BrokerSettings(**broker),
    )
    async with Node(settings) as node:
        yield node


@contextlib.asynccontextmanager
async def client_of(node: Node, **hello: Any) -> AsyncIterator[RawClient]:
    async with RawClient(node.service_url) as client:
        await client.hello(**hello)
        yield client
