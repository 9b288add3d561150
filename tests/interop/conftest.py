"""Apache Pulsar's broker for tests of the SDK: one process per test process, its log on failure."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any

import pulsar
import pytest

import anabranch
from anabranch import Backoff, Client, ConnectionPolicy
from anabranch.admin import Admin
from tests.services.available import pulsar_broker_node
from tests.services.pulsar_broker import PulsarNode
from tests.support.traffic.stock_client import new_client

START_SECONDS = 180.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.5), partitions_every=0.5)
Made = Callable[[int], Awaitable[str]]


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarNode]:
    """The broker. It may be killed or paused by a test that brings it back."""
    node = pulsar_broker_node(tmp_path_factory.mktemp("apache"))
    try:
        node.start(within_s=START_SECONDS)
        yield node
    finally:
        node.kill9()  # an orderly stop takes ten seconds, and its data is not used again


@pytest.fixture
async def sdk(apache: PulsarNode) -> AsyncIterator[Client]:
    async with anabranch.connect(apache.service_url, connection=QUICK) as client:
        yield client
    assert asyncio.all_tasks() == {asyncio.current_task()}, "the client left tasks behind"


@pytest.fixture
def stock(apache: PulsarNode) -> Iterator[pulsar.Client]:
    client = new_client(apache.service_url)
    yield client
    client.close()


@pytest.fixture
async def admin(apache: PulsarNode) -> AsyncIterator[Admin]:
    async with anabranch.admin.connect(apache.http_url) as client:
        yield client


@pytest.fixture
def made(admin: Admin) -> Made:
    """`await made(3)`: a fresh topic of three partitions; 0: without any, made by its first use."""

    async def topic(partitions: int) -> str:
        name = f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"
        if partitions:
            await admin.topics.create(name, partitions=partitions)
        return name

    return topic


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A failed test shows the end of the broker's log."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, PulsarNode):
                report.sections.append((f"broker log ({name})", value.log_tail()))
    return report
