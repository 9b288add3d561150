"""The admin client against a real broker: every route, the main calls (async and blocking), errors."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

import anabranch
import anabranch.admin
from anabranch.admin import AdminError, Refused, Unreachable
from anabranch.admin.blocking import BlockingAdmin
from anabranch.admin.client import segment_ids
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.admin_calls import requested

NOT_CALLS = {
    *(("get", path) for path in ("/docs", "/", "/console/{file}")),  # pages for people
    ("get", "/anabranch/v1/scalable/{tenant}/{namespace}/{topic}/events"),  # an answer without an end
    ("get", "/admin/v2/brokers/backlogQuotaCheck"),  # the earlier name of `backlog-quota-check`
    # PIP-475's own paths; the client uses those below `/admin/v2/scalable`:
    ("post", "/admin/v2/scalable-topics/{tenant}/{namespace}/{topic}/migrate-to-scalable"),
    ("get", "/admin/v2/scalable-topics/{tenant}/{namespace}/{topic}/migration"),
}


async def test_every_route_has_a_method(broker: BrokerProcess) -> None:
    """Walks /openapi.json, so that a new route without a method is noticed here."""
    async with anabranch.admin.connect(broker.http_url) as admin:
        described = await admin.brokers.openapi()
    seen = await requested()
    missing = []
    for pattern, ways in described["paths"].items():
        text = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(pattern))
        for method in ways.keys() & {"get", "put", "post", "delete"}:
            is_asked = any(method == verb and re.fullmatch(text, path) for verb, path in seen)
            if not is_asked and (method, pattern) not in NOT_CALLS:
                missing.append(f"{method.upper()} {pattern}")
    assert missing == []
    assert len(described["paths"]) > 100


async def test_main_admin_calls(broker: BrokerProcess) -> None:
    tenant = f"t{uuid.uuid4().hex[:8]}"
    async with anabranch.admin.connect(broker.http_url) as admin:
        clusters = await admin.clusters.list()
        await admin.tenants.create(tenant, allowed_clusters=clusters)
        assert (await admin.tenants.get(tenant))["allowedClusters"] == clusters
        namespace = f"{tenant}/shop"
        await admin.namespaces.create(namespace)
        assert await admin.namespaces.list(tenant) == [namespace]
        await admin.namespaces.set_policy(namespace, "messageTTL", 60)
        assert await admin.namespaces.policy(namespace, "messageTTL") == 60
        await admin.namespaces.remove_policy(namespace, "messageTTL")
        await admin.namespaces.set_backlog_quota(namespace, {"limitSize": 1000, "policy": "producer_request_hold"})
        assert "destination_storage" in await admin.namespaces.backlog_quotas(namespace)
        await admin.namespaces.grant(namespace, "ann", ["produce"])
        assert await admin.namespaces.permissions(namespace) == {"ann": ["produce"]}
        topic = f"{namespace}/orders"
        await admin.topics.create(topic, partitions=3)
        assert await admin.topics.partitions(topic) == 3
        assert await admin.topics.list_partitioned(namespace) == [f"persistent://{topic}"]
        await admin.subscriptions.create(topic, "s", at="earliest")
        assert await admin.subscriptions.list(topic) == ["s"]
        await admin.topics.publish(f"{topic}-partition-1", [{"payload": "x", "key": "k"}])
        stats = await admin.topics.partitioned_stats(topic)
        assert stats["subscriptions"]["s"]["msgBacklog"] == 1
        await admin.subscriptions.skip_all(topic, "s")
        posted = await admin.schemas.upload(topic, {"type": "STRING", "schema": "", "properties": {}})
        assert posted["version"]["version"] == 0
        assert [one["type"] for one in await admin.schemas.versions(topic)] == ["STRING"]
        assert await admin.brokers.health() == "ok"
        assert "brokerUrl" in await admin.topics.lookup(f"{topic}-partition-0")
        await admin.topics.delete(topic, partitioned=True, force=True)
        await admin.namespaces.delete(namespace)
        await admin.tenants.delete(tenant)
        assert tenant not in await admin.tenants.list()


@dataclass(frozen=True)
class Names:
    tenant: str
    namespace: str
    topic: str
    partitioned: str
    scalable: str


@pytest.fixture
def names() -> Names:
    tenant = f"t{uuid.uuid4().hex[:8]}"
    return Names(tenant, *(f"{tenant}/shop{end}" for end in ("", "/plain", "/parts", "/scalable")))


def creations(admin: BlockingAdmin, names: Names) -> dict[str, Callable[..., None]]:
    return {
        "tenant": partial(admin.tenants.create, names.tenant, allowed_clusters=["standalone"]),
        "namespace": partial(admin.namespaces.create, names.namespace),
        "topic": partial(admin.topics.create, names.topic),
        "partitioned": partial(admin.topics.create, names.partitioned, partitions=3),
        "scalable": partial(admin.scalable_topics.create, names.scalable, segments=2),
        "subscription": partial(admin.subscriptions.create, names.topic, "s", at="earliest"),
        "partitioned subscription": partial(admin.subscriptions.create, names.partitioned, "s"),
        "cluster": partial(admin.clusters.create, f"c-{names.tenant}", {"serviceUrl": "http://h:8080"}),
    }


def test_creation_with_exist_ok_leaves_the_existing_one_as_it_is(broker: BrokerProcess, names: Names) -> None:
    with anabranch.admin.blocking.connect(broker.http_url) as admin:
        for what, create in creations(admin, names).items():
            create(exist_ok=True)  # creates it
            create(exist_ok=True)
            with pytest.raises(Refused) as caught:
                create()
            assert caught.value.status == 409, what
        admin.tenants.create(names.tenant, allowed_clusters=["standalone"], admin_roles=["new"], exist_ok=True)
        assert admin.tenants.get(names.tenant)["adminRoles"] == []
        admin.scalable_topics.create(names.scalable, segments=5, exist_ok=True)
        assert admin.scalable_topics.stats(names.scalable)["activeSegments"] == 2


def test_exist_ok_does_not_accept_another_kind_of_topic(broker: BrokerProcess, names: Names) -> None:
    with anabranch.admin.blocking.connect(broker.http_url) as admin:
        for create in creations(admin, names).values():
            create()
        for wrong in (
            partial(admin.topics.create, names.scalable),
            partial(admin.topics.create, names.scalable, partitions=2),
            partial(admin.topics.create, names.topic, partitions=2),
            partial(admin.topics.create, names.partitioned),
            partial(admin.topics.create, names.partitioned, partitions=4),
            partial(admin.scalable_topics.create, names.topic),
            partial(admin.scalable_topics.create, names.partitioned),
        ):
            with pytest.raises(Refused) as caught:
                wrong(exist_ok=True)
            assert caught.value.status == 409, wrong
        with pytest.raises(Refused):
            admin.subscriptions.create(names.scalable, "s", exist_ok=True)


async def test_exist_ok_of_the_asyncio_client(broker: BrokerProcess, names: Names) -> None:
    async with anabranch.admin.connect(broker.http_url) as admin:
        for _ in range(2):
            await admin.tenants.create(names.tenant, allowed_clusters=["standalone"], exist_ok=True)
            await admin.namespaces.create(names.namespace, exist_ok=True)
            await admin.scalable_topics.create(names.scalable, exist_ok=True)
            await admin.topics.create(names.topic, exist_ok=True)
            await admin.subscriptions.create(names.topic, "s", exist_ok=True)


async def test_split_and_merge_return_the_new_segments(broker: BrokerProcess) -> None:
    topic = f"public/default/s-{uuid.uuid4().hex[:8]}"
    async with anabranch.admin.connect(broker.http_url) as admin:
        await admin.scalable_topics.create(topic)
        assert await admin.scalable_topics.split(topic, 0) == (1, 2)
        assert await admin.scalable_topics.split(topic, 2, into=3) == (3, 4, 5)
        assert await admin.scalable_topics.merge(topic, [4, 3]) == (6,)
        assert await admin.scalable_topics.merge(topic, [6, 1, 5]) == (7,)
        answer = await admin.call("POST", f"/admin/v2/scalable/{topic}/split/7", query={"operationId": "once"})
        assert (answer.status, answer.body, segment_ids(answer)) == (204, b"", (8, 9))
        again = await admin.call("POST", f"/admin/v2/scalable/{topic}/split/7", query={"operationId": "once"})
        assert segment_ids(again) == (8, 9), "a repeated call has the same answer"
    with anabranch.admin.blocking.connect(broker.http_url) as blocking:
        assert blocking.scalable_topics.split(topic, 8) == (10, 11)


def test_blocking_admin_calls(broker: BrokerProcess) -> None:
    topic = f"public/default/a-{uuid.uuid4().hex[:8]}"
    with anabranch.admin.blocking.connect(broker.http_url) as admin:
        admin.topics.create(topic)
        assert f"persistent://{topic}" in admin.topics.list("public/default")
        admin.subscriptions.create(topic, "s")
        assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0
        admin.topics.delete(topic, force=True)
        with pytest.raises(Refused) as caught:
            admin.topics.stats(topic)
        assert caught.value.status == 404


async def test_refusals_have_status_code_and_reason(broker: BrokerProcess) -> None:
    async with anabranch.admin.connect(broker.http_url) as admin:
        with pytest.raises(Refused) as caught:
            await admin.namespaces.get("nobody/nothing")
        assert (caught.value.status, caught.value.retryable) == (404, False)
        assert caught.value.code and caught.value.reason
        assert isinstance(caught.value, anabranch.Error)


async def test_many_calls_at_once_share_their_connections(broker: BrokerProcess) -> None:
    async with anabranch.admin.connect(broker.http_url) as admin:
        for _ in range(3):
            answers = await asyncio.gather(*(admin.brokers.health() for _ in range(30)))
            assert set(answers) == {"ok"}
        idle = sum(map(len, admin._connections._idle.values()))
        assert 1 <= idle <= 8


async def test_unreachable_and_silent_broker() -> None:
    async with anabranch.admin.connect("http://127.0.0.1:1") as admin:
        with pytest.raises(Unreachable) as caught:
            await admin.tenants.list()
        assert caught.value.retryable
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with silent:
        port = silent.sockets[0].getsockname()[1]
        async with anabranch.admin.connect(f"http://127.0.0.1:{port}", timeout=0.2) as admin:
            with pytest.raises(Unreachable, match="timed out"):
                await admin.tenants.list()


class Answering:
    """An HTTP server that gives every request the same answer, and remembers what it was asked."""

    def __init__(self, status: str, *headers: str, body: str = "") -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", body]
        self._answer = "\r\n".join(lines).encode()
        self.asked: list[tuple[str, bool]] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.decode().lower().split("\r\n")
            length = next((int(one.split(":")[1]) for one in lines if one.startswith("content-length")), 0)
            await reader.readexactly(length)
            self.asked.append((head.decode().split("\r\n")[0], any(one.startswith("authorization") for one in lines)))
            writer.write(self._answer)

    async def _quietly(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()  # the client is done

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._quietly, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_redirects_send_token_only_to_the_family(is_blocking: bool) -> None:
    async def create(url: str) -> None:
        if is_blocking:
            with anabranch.admin.blocking.connect(url, token="t") as blocking:
                await asyncio.to_thread(blocking.topics.create, "orders", partitions=2)
        else:
            async with anabranch.admin.connect(url, token="t") as admin:
                await admin.topics.create("orders", partitions=2)

    there = Answering("204 No Content")
    async with there as url:
        path = "/admin/v2/persistent/public/default/orders/partitions"
        here = Answering("307 Temporary Redirect", f"Location: {url}{path}")
        async with here as first:
            await create(first)
    assert here.asked == there.asked == [(f"PUT {path} HTTP/1.1", True)]
    async with Answering("307 Temporary Redirect", "Location: http://example.org/x") as url:
        with pytest.raises(AdminError) as caught:
            await create(url)
        assert caught.value.code == "redirect-refused"
    rounds = Answering("307 Temporary Redirect", "Location: http://localhost:1/x")
    async with rounds as url:
        rounds._answer = rounds._answer.replace(b"http://localhost:1/x", f"{url}/x".encode())
        with pytest.raises(Unreachable, match="too many redirects"):
            await create(url)
