"""Admin calls at any broker are forwarded to the owner of the topic; only brokers may make peer calls."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.broker.catalog.topic_policies import TOPIC_POLICIES
from anabranch.broker.peers import PeerCallRefused, PeerCallUnanswered, PeerNotConnected
from anabranch.cluster.cluster import Cluster
from anabranch.cluster.slots import slot_of, slots_of_bundle
from anabranch.interbroker.client import PeerClient
from anabranch.interbroker.signature import HEADER, Secret
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.names import TopicName
from anabranch.node.adapters import placement as membership
from anabranch.node.node import Node
from anabranch.node.settings.security import TlsSettings
from anabranch.protocol.commands import BaseCommand
from anabranch.rest.errors import redirect
from anabranch.rest.http_message import Request
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.credentials import Authority
from tests.support.processes.in_process_cluster import is_settled, nodes, place_of, topic_at, until
from tests.support.traffic.raw_client import RawClient

ADMIN = "/admin/v2"
MOVES = 12


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _call(url: str, method: str, body: Any, follow: bool, headers: dict[str, str]) -> tuple[int, Any, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    opener = urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(request, timeout=30) as answer:
            status, text, found = answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        status, text, found = error.code, error.read(), error.headers
    if status == 307 and follow:
        return _call(found["Location"], method, body, follow, headers)
    try:
        return status, json.loads(text) if text else None, found
    except ValueError:
        return status, text.decode(), found


async def call(
    node: Node, method: str, path: str, body: Any = None, *, follow: bool = True, signature: str | None = None
) -> tuple[int, Any, Any]:
    headers = {} if signature is None else {HEADER: signature}
    return await asyncio.to_thread(_call, f"{node.http_url}{path}", method, body, follow, headers)


async def expect(node: Node, method: str, path: str, body: Any = None) -> Any:
    status, value, _ = await call(node, method, path, body)
    assert status < 300, (status, value)
    return value


async def test_partitions_on_several_brokers(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2") as (one, two):
        parent = f"{ADMIN}/persistent/public/default/parent"
        await expect(one, "PUT", f"{parent}/partitions", 6)
        names = [TopicName.parse(f"persistent://public/default/parent-partition-{index}") for index in range(6)]
        here = [name for name in names if place_of(one).is_here(name)]
        assert 0 < len(here) < 6, "the test needs partitions on both"
        assert all(
            (node.services.topics.loaded(name) is not None) == place_of(node).is_here(name)
            for node in (one, two)
            for name in names
        )
        await expect(two, "PUT", f"{parent}/subscription/s", "earliest")
        status, value, _ = await call(one, "PUT", f"{parent}/subscription/s", "earliest")
        assert status == 409, value
        stats = await expect(one, "GET", f"{parent}/partitioned-stats")
        assert set(stats["partitions"]) == {str(name) for name in names}
        assert all(part["subscriptions"].keys() == {"s"} for part in stats["partitions"].values())
        inner = await expect(two, "GET", f"{parent}/partitioned-internalStats")
        assert set(inner["partitions"]) == set(stats["partitions"])
        assert await expect(two, "GET", f"{parent}/subscriptions") == ["s"]
        await expect(one, "POST", f"{parent}/partitions", 9)
        assert all(
            "s" in part["subscriptions"]
            for part in (await expect(two, "GET", f"{parent}/partitioned-stats"))["partitions"].values()
        )
        await expect(one, "POST", f"{parent}/subscription/s/skip_all")
        status, value, _ = await call(one, "POST", f"{parent}/subscription/missing/skip_all")
        assert status == 404 and "not found" in value["reason"].lower()
        await expect(two, "PUT", f"{parent}/unload")
        assert not [name for node in (one, two) for name in node.services.topics.names()]
        last = f"{parent}-partition-8/subscription/left"
        await expect(two, "DELETE", f"{parent}/subscription/s")
        await expect(one, "PUT", last, "latest")
        status, value, _ = await call(one, "DELETE", f"{parent}/partitions")
        assert status == 412 and "subscriptions" in value["reason"]
        assert len(await expect(one, "GET", f"{ADMIN}/persistent/public/default")) == 9, "none of them is gone"
        await expect(one, "DELETE", last)
        assert await expect(one, "GET", f"{parent}/subscriptions") == []
        ends = await expect(two, "POST", f"{parent}/terminate/partitions")
        assert len(ends) == 9
        await expect(two, "DELETE", f"{parent}/partitions")
        assert await expect(one, "GET", f"{ADMIN}/persistent/public/default") == []


async def test_all_topics_of_a_namespace(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2") as (one, two):
        kept = {node: topic_at(node) for node in (one, two)}
        volatile = {node: topic_at(node, "non-persistent://public/default/v") for node in (one, two)}
        for node in (one, two):
            await node.services.topics.create(kept[node])
            await node.services.topics.get(volatile[node], create=True)
            await expect(one, "PUT", f"{ADMIN}/{str(kept[node]).replace('://', '/')}/subscription/s", "earliest")
        for node in (one, two):
            assert await expect(node, "GET", f"{ADMIN}/non-persistent/public/default") == sorted(
                map(str, volatile.values())
            )
            listed = await expect(node, "GET", f"{ADMIN}/namespaces/public/default/topics?mode=ALL")
            assert set(listed) == {*map(str, kept.values()), *map(str, volatile.values())}
        status, _, _ = await call(one, "DELETE", f"{ADMIN}/namespaces/public/default")
        assert status == 409
        await expect(two, "POST", f"{ADMIN}/namespaces/public/default/clearBacklog")
        await expect(two, "POST", f"{ADMIN}/namespaces/public/default/unsubscribe/s")
        for name in kept.values():
            assert await expect(two, "GET", f"{ADMIN}/{str(name).replace('://', '/')}/subscriptions") == []
        await expect(one, "PUT", f"{ADMIN}/namespaces/public/default/unload")
        assert not [*one.services.topics.names(), *two.services.topics.names()]
        for name in kept.values():
            await expect(one, "DELETE", f"{ADMIN}/{str(name).replace('://', '/')}")
        await expect(two, "DELETE", f"{ADMIN}/namespaces/public/default")


async def test_a_bundle_is_unloaded_to_a_broker_of_choice(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2") as (one, two):
        bundle = "0x00000000_0x40000000"
        names = (TopicName.parse(f"persistent://public/default/m-{number}") for number in range(10_000))
        name = next(n for n in names if slot_of(str(n)) in slots_of_bundle(bundle) and place_of(one).is_here(n))
        await one.services.topics.create(name)
        path = f"{ADMIN}/namespaces/public/default/{bundle}/unload?destinationBroker="
        assert (await call(one, "PUT", f"{path}absent:1"))[0] == 404
        await expect(two, "PUT", f"{path}{two.services.address.broker_id}")
        await until(lambda: {place_of(node).owner_address(name) for node in (one, two)} == {two.services.address})
        assert set(slots_of_bundle(bundle)) <= place_of(two).cluster.table.held_by(
            place_of(two).cluster.info.broker_incarnation
        )
        assert is_settled([one, two]), "as many slots went the other way"
        await expect(one, "GET", f"{ADMIN}/{str(name).replace('://', '/')}/stats")
        assert two.services.topics.loaded(name) is not None and one.services.topics.loaded(name) is None


async def test_brokers_are_listed_drained_and_resumed(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2") as (one, two):
        ids = sorted(node.services.address.broker_id for node in (one, two))
        for node in (one, two):
            assert await expect(node, "GET", f"{ADMIN}/brokers") == ids
            assert await expect(node, "GET", f"{ADMIN}/brokers/standalone") == ids
            leader = await expect(node, "GET", f"{ADMIN}/brokers/leaderBroker")
            assert leader == {"serviceUrl": one.http_url, "brokerId": one.services.address.broker_id}
            shown = await expect(node, "GET", f"{ADMIN}/brokers/standalone/details")
            assert [(b["id"], b["slots"], b["leader"], b["draining"]) for b in shown] == [
                ("b1", 128, True, False),
                ("b2", 128, False, False),
            ]
        name = topic_at(two)
        await two.services.topics.create(name)
        owned = await expect(one, "GET", f"{ADMIN}/brokers/standalone/b2/ownedNamespaces")
        assert [bundle.rpartition("/")[0] for bundle in owned] == ["public/default"]
        assert owned == await expect(
            two, "GET", f"{ADMIN}/brokers/standalone/{two.services.address.broker_id}/ownedNamespaces"
        )
        assert (await call(one, "POST", f"{ADMIN}/brokers/standalone/b9/drain"))[0] == 404
        await expect(one, "POST", f"{ADMIN}/brokers/standalone/b2/drain")
        assert not place_of(two).cluster.table.held_by(place_of(two).cluster.info.broker_incarnation)
        await until(lambda: place_of(one).is_here(name))
        status, value, _ = await call(one, "POST", f"{ADMIN}/brokers/standalone/b1/drain")
        assert status == 412, value
        await until(lambda: place_of(one).cluster.brokers["b2"].is_draining)
        await expect(one, "DELETE", f"{ADMIN}/brokers/standalone/b2/drain")
        await until(lambda: is_settled([one, two]))


async def test_peer_endpoint_admits_only_brokers(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2") as (one, two):
        path, clock = "/internal/v1/errands/brokers.owned_here", SystemClock()
        incarnations = [place_of(node).cluster.info.broker_incarnation for node in (one, two)]
        peers = one.services.peers
        assert peers is not None
        assert await peers.call("b2", "brokers.owned_here", {}) == {}
        for forged in ("", "v1;b1", "v1;b1;b2#1;0;1-1;" + "0" * 64):
            status, value, _ = await call(two, "POST", path, {}, signature=forged)
            assert (status, value["reason"]) == (403, "only brokers of this cluster may call this")
            assert set(value) == {"reason", "error"}
        assert (await call(two, "GET", "/internal/"))[0] == 403
        stranger = PeerClient(Secret(b"s" * 32), incarnations[0], clock)
        with pytest.raises(PeerCallUnanswered, match="403"):
            await stranger.call(two.http_url, incarnations[1], "brokers.owned_here", {})
        secret = await _secret(one)
        friend = PeerClient(secret, BrokerIncarnation("b1", 99), clock)
        with pytest.raises(PeerCallUnanswered, match="403"):  # meant for an earlier life of it
            await friend.call(
                two.http_url, BrokerIncarnation("b2", incarnations[1].number - 1), "brokers.owned_here", {}
            )
        with pytest.raises(PeerCallRefused) as refused:
            await friend.call(two.http_url, incarnations[1], "brokers.configuration", {})
        assert (refused.value.status, refused.value.code) == (404, "not-found"), "only declared calls can be made"
        with pytest.raises(PeerNotConnected):
            await friend.call("http://127.0.0.1:1", incarnations[1], "brokers.owned_here", {})
        assert secret.key.hex() not in json.dumps(await expect(one, "GET", f"{ADMIN}/brokers/configuration/runtime"))


async def _secret(node: Node) -> Secret:
    found = await node.services.catalog._store.get("/cluster/secret")  # what only brokers read
    assert found is not None
    return Secret(bytes.fromhex(found.value.decode()))


async def test_replayed_request_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(tmp_path, "b1", "b2") as (one, two):
        signatures: list[str] = []
        plain = PeerClient._exchange

        async def listen(self: PeerClient, url: str, path: str, body: bytes, signature: str) -> Any:
            signatures.append(signature)
            return await plain(self, url, path, body, signature)

        monkeypatch.setattr(PeerClient, "_exchange", listen)
        peers = one.services.peers
        assert peers is not None
        await peers.call("b2", "brokers.owned_here", {})
        status, _, _ = await call(two, "POST", "/internal/v1/errands/brokers.owned_here", {}, signature=signatures[0])
        assert status == 403


def _filled(pattern: str, topic: TopicName) -> str:
    words = {
        "tenant": topic.tenant,
        "namespace": topic.namespace,
        "topic": topic.encoded_local,
        "subscription": "s",
        "timestamp": "0",
        "seconds": "1",
        "count": "1",
        "number": "1",
        "ledger": "0",
        "entry": "0",
        "role": "r",
        "version": "0",
    }

    def one(found: re.Match[str]) -> str:
        name, _, choice = found[1].partition(":")
        if name == "domain":
            return str(topic.domain)
        return choice.split("|")[0] if choice else words[name]

    return re.sub(r"{([^}]*)}", one, pattern)


ANYWHERE = {  # ends of paths behind the topic, answered by any broker: from metadata, or by asking the others
    ("GET", "partitions"),
    ("PUT", "partitions"),
    ("POST", "partitions"),
    ("DELETE", "partitions"),
    ("GET", "partitioned-stats"),
    ("POST", "createMissedPartitions"),
    ("GET", "permissions"),
    ("POST", "permissions/r"),
    ("DELETE", "permissions/r"),
    ("GET", "messages"),
    ("GET", "messages/page"),
    ("GET", "messages/count"),
}


POLICIES = {  # of single topics: in the metadata store, so any broker answers
    "policies",
    *(policy.path.format(subscription="s") for policy in TOPIC_POLICIES),
    *(policy.entries_path for policy in TOPIC_POLICIES if policy.entries_path),
}


def is_regular(pattern: str) -> bool:
    """A route of a regular topic: scalable ones have leaders and owners of their own."""
    return "{topic}" in pattern and not pattern.startswith(
        ("/admin/v2/scalable/", "/admin/v2/scalable-topics/", "/admin/v2/segments/", "/anabranch/v1/scalable/")
    )


def needs_owner(method: str, path: str) -> bool:
    """Said here once more, so that a route that forgets it is found."""
    if path.startswith(("/lookup/", "/admin/v2/schemas/")):
        return False
    end = "/".join(path.split("/")[7 if path.startswith(("/admin/", "/anabranch/")) else 6 :])
    return (method, end) not in ANYWHERE and end not in POLICIES


async def test_every_route_of_a_topic_finds_its_owner(tmp_path: Path) -> None:
    """Asked of the broker that does not serve the topic: sent on to the owner, or answered as the owner answers."""
    from anabranch import __version__
    from anabranch.broker.admin.service import BrokerAdmin
    from anabranch.rest.routes.table import make_router

    async with nodes(tmp_path, "b1", "b2") as (one, two):
        face = BrokerAdmin(lambda: one.services, None, lambda: None)  # type: ignore[arg-type]  # only its routes
        routes = [r for r in make_router(face, __version__).routes if is_regular(r.pattern)]
        assert len(routes) > 50
        topic = topic_at(two)
        await expect(two, "PUT", f"{ADMIN}/{str(topic).replace('://', '/')}")
        sent_on, answered = [], []
        for route in routes:
            path = _filled(route.pattern, topic)
            status, value, headers = await call(one, route.method, path, follow=False)
            assert (status == 307) == needs_owner(route.method, path), (route.method, path, status)
            if status == 307:
                assert headers["Location"] == f"{two.http_url}{path}"
                sent_on.append(path)
            else:
                if route.method == "GET":
                    assert (status, value) == (await call(two, "GET", path))[:2], path
                answered.append(path)
        assert two.services.topics.loaded(topic) is not None, "nothing was done to it"
        assert one.services.topics.loaded(topic) is None
        assert len(sent_on) == sum(route.at_owner for route in routes) >= 35, sorted(answered)


async def test_partitioned_topic_has_the_same_answer_at_every_broker(tmp_path: Path) -> None:
    from anabranch import __version__
    from anabranch.broker.admin.service import BrokerAdmin
    from anabranch.rest.routes.table import make_router

    async with nodes(tmp_path, "b1", "b2") as (one, two):
        face = BrokerAdmin(lambda: one.services, None, lambda: None)  # type: ignore[arg-type]  # only its routes
        routes = [r for r in make_router(face, __version__).routes if is_regular(r.pattern) and r.method == "GET"]
        parent = TopicName.parse("persistent://public/default/parent")
        await expect(one, "PUT", f"{ADMIN}/persistent/public/default/parent/partitions", 5)
        for route in routes:
            path = _filled(route.pattern, parent)
            answers = [await call(node, "GET", path) for node in (one, two)]
            assert answers[0][0] == answers[1][0] < 500, (path, answers)
            if answers[0][0] >= 300:
                assert answers[0][1] == answers[1][1]


async def test_any_broker_names_segments_made_by_split_and_merge(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2") as (one, two):
        topic = f"{ADMIN}/scalable/public/default/orders"
        await expect(one, "PUT", topic)
        for node, path, expected in (
            (one, "/split/0", "1,2"),
            (two, "/split/2?into=3", "3,4,5"),
            (one, "/merge/3/4", "6"),
            (two, "/merge?segments=6,5", "7"),
        ):
            status, _, headers = await call(node, "POST", f"{topic}{path}")
            assert (status, headers["X-Anabranch-Segment-Ids"]) == (204, expected)


async def test_non_persistent_topics_are_listed_at_any_broker(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2") as (one, two):
        names = {str(topic_at(node, "non-persistent://public/default/v")) for node in (one, two)}
        for node in (one, two):
            await node.services.topics.get(topic_at(node, "non-persistent://public/default/v"), create=True)
        for node in (one, two):
            async with RawClient(node.service_url) as client:
                await client.hello()
                found = await client.ask(BaseCommand.GET_TOPICS_OF_NAMESPACE, namespace="public/default", mode=1)
                assert set(found.body.topics) == names and len(names) == 2


async def test_a_broker_without_a_valid_session_is_not_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(tmp_path, "b1", "b2") as (one, _):
        assert (await call(one, "GET", f"{ADMIN}/brokers/health"))[0] == 200
        path = f"{ADMIN}/{str(topic_at(one)).replace('://', '/')}/stats"
        with monkeypatch.context() as patched:
            patched.setattr(Cluster, "is_valid", False)
            patched.setattr(membership, "PLACED_SECONDS", 0.1)
            assert (await call(one, "GET", path, follow=False))[0] == 503, "and does not redirect to itself"
            status, value, _ = await call(one, "GET", f"{ADMIN}/brokers/health")
            assert status == 503 and "lost its session" in value["reason"]
        assert (await call(one, "GET", f"{ADMIN}/brokers/health"))[0] == 200


async def test_tls_clients_are_redirected_to_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("localhost", file="server")
    tls = TlsSettings(cert_file=files.certificate, key_file=files.key, port=0, http_port=0)
    async with nodes(tmp_path / "data", "b1", "b2", tls=tls) as (one, two):
        topic = str(topic_at(two)).replace("://", "/")
        plain, encrypted = two.services.address.http_url, two.services.address.http_url_tls
        assert encrypted is not None

        def ask(node: Node) -> str:
            url = node.services.address.http_url_tls
            assert url is not None
            with AdminClient(url, trust_file=str(authority.path)) as client:
                client.put(f"/admin/v2/{topic}")  # follows
                return str(client.call("GET", f"/lookup/v2/topic/{topic}").value["httpUrlTls"])

        assert await asyncio.to_thread(ask, one) == encrypted
        path = f"/admin/v2/{topic}/stats"
        _, _, headers = await call(one, "GET", path, follow=False)
        assert headers["Location"] == f"{plain}{path}"
        assert redirect(Request("GET", path, is_encrypted=True), two.services.address).headers == (
            ("Location", f"{encrypted}{path}"),
        )


async def test_answers_stay_right_while_topics_move(tmp_path: Path) -> None:
    """Asked at both brokers all the time, while a quarter of all hashes goes to and fro."""
    async with nodes(tmp_path, "b1", "b2") as (one, two):
        parent = f"{ADMIN}/persistent/public/default/parent"
        await expect(one, "PUT", f"{parent}/partitions", 20)
        moved = 0

        async def look(node: Node) -> int:
            count = 0
            while moved < MOVES:
                stats = await expect(node, "GET", f"{parent}/partitioned-stats")
                assert len(stats["partitions"]) == 20
                await expect(node, "POST", f"{parent}/trim")
                count += 1
            return count

        async def move() -> None:
            nonlocal moved
            try:
                for number in range(MOVES):
                    peers = (one, two)[number % 2].services.peers
                    assert peers is not None
                    await peers.move((0, 0x4000_0000), ("b1", "b2")[number // 2 % 2])
                    moved += 1
            finally:
                moved = MOVES

        async with asyncio.timeout(60):
            counts = await asyncio.gather(look(one), look(two), move())
        assert min(counts[:2]) > 0
