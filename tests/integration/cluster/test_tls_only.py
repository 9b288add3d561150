"""Brokers without plain ports: clients, administrators and the brokers among themselves use TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import anabranch
import anabranch.admin
from anabranch.broker.peers import PeerNotConnected
from anabranch.cli.serve.multi_broker import arguments, shared_urls
from anabranch.client import Tls
from anabranch.node.node import Node
from anabranch.node.settings.node import NetworkSettings, NodeSettings
from anabranch.node.settings.security import TlsSettings
from anabranch.node.wiring.security import BadTlsFiles
from anabranch.rest.settings import HttpSettings
from anabranch.runtime.settings import SettingsError
from tests.support.in_memory.credentials import Authority
from tests.support.processes.broker_process import free_port
from tests.support.processes.in_process_cluster import node_settings, nodes, topic_at


def tls_only(authority: Authority, **more: object) -> TlsSettings:
    files = authority.issue("broker", file="broker")
    values = {"cert_file": files.certificate, "key_file": files.key, "port": 0, "http_port": 0, "only": True, **more}
    return TlsSettings(**values)  # type: ignore[arg-type]  # settings by name


def own_addresses(node: Node) -> tuple[str | None, ...]:
    address = node.services.address
    return address.service_url, address.http_url, address.service_url_tls, address.http_url_tls


async def is_refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def test_broker_with_tls_only_opens_no_plain_port(tmp_path: Path) -> None:
    authority, plain, http = Authority(tmp_path), free_port(), free_port()
    settings = node_settings(
        tmp_path / "data",
        "b1",
        tls=tls_only(authority, trust_file=authority.path),
        network=NetworkSettings(port=plain),
        http=HttpSettings(port=http),
    )
    trust = Tls(trust_file=authority.path)
    async with Node(settings) as node:
        assert [await is_refused(port) for port in (plain, http)] == [True, True]
        service_url, http_url, *others = own_addresses(node)
        assert others == [service_url, http_url] and node.tls_urls == (service_url, http_url)
        assert [urlsplit(url).scheme for url in node.tls_urls] == ["pulsar+ssl", "https"]
        async with (
            anabranch.connect(node.service_url, tls=trust) as client,
            client.producer("t") as producer,
            client.queue_consumer("t", subscription="s", start="earliest") as consumer,
        ):
            await producer.send(b"x")
            message = await consumer.receive(timeout=10)
            assert message is not None and message.data == b"x"
        async with anabranch.admin.connect(node.http_url, tls=trust) as admin:
            assert await admin.brokers.health() == "ok"
            assert set((await admin.topics.lookup("t")).values()) == {service_url, http_url}


@pytest.mark.parametrize("wants_certificates", [False, True])
async def test_brokers_with_tls_only_call_each_other_with_tls(tmp_path: Path, wants_certificates: bool) -> None:
    authority = Authority(tmp_path)
    more = {"ca_file": authority.path, "require_client_certificate": True} if wants_certificates else {}
    tls = tls_only(authority, **(more or {"trust_file": authority.path}))
    files = authority.issue("app", file="app")
    trust = Tls(trust_file=authority.path, certificate_file=files.certificate, key_file=files.key)
    async with nodes(tmp_path / "data", "b1", "b2", tls=tls) as (one, two):
        for here, there in ((one, two), (two, one)):
            peers = here.services.peers
            assert peers is not None
            assert isinstance(await peers.call(there.settings.storage.broker_id, "brokers.owned_here", {}), dict)
        async with (
            anabranch.connect(one.service_url, tls=trust) as client,
            anabranch.admin.connect(two.http_url, tls=trust) as admin,
        ):
            topics = [str(topic_at(node)) for node in (one, two)]
            for topic in topics:
                async with client.producer(topic) as producer:
                    await producer.send(b"x")
                assert (await admin.topics.stats(topic))["msgInCounter"] == 1  # redirected to https
            await admin.scalable_topics.create("orders", segments=4)
            assert await admin.scalable_topics.split("orders", 0) == (4, 5)
            async with client.producer("topic://public/default/orders") as producer:
                for number in range(20):
                    await producer.send(b"x", key=f"k{number}")


async def test_broker_with_an_untrusted_certificate_is_not_called(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    tls = tls_only(authority, trust_file=other.path)
    async with nodes(tmp_path / "data", "b1", "b2", tls=tls) as (one, _):
        peers = one.services.peers
        assert peers is not None
        with pytest.raises(PeerNotConnected, match="CERTIFICATE_VERIFY_FAILED"):
            await peers.call("b2", "brokers.owned_here", {})


async def test_missing_trust_file_is_reported_at_the_start(tmp_path: Path) -> None:
    tls = tls_only(Authority(tmp_path), trust_file=tmp_path / "missing.pem")
    with pytest.raises(BadTlsFiles, match=r"missing\.pem"):
        async with Node(node_settings(tmp_path / "data", "b1", tls=tls)):
            pass


def test_tls_only_needs_a_certificate() -> None:
    with pytest.raises(SettingsError, match=r"tls\.only"):
        TlsSettings(only=True)


@pytest.mark.parametrize("only", [False, True])
def test_several_brokers_share_tls_ports(only: bool) -> None:
    tls = TlsSettings(cert_file=Path("c"), key_file=Path("k"), only=only)
    settings = NodeSettings(tls=tls)
    plain, encrypted = shared_urls(settings)
    assert plain == (() if only else ("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080"))
    assert encrypted == ("pulsar+ssl://127.0.0.1:6651", "https://127.0.0.1:8443")
    given = arguments(settings, 1, None, (), {"tls_cert": "c", "tls_key": "k", "tls_only": only or None})
    assert ("--tls-only" in given, "cluster.front_port=6650" in given) == (only, not only)
    assert {"cluster.front_tls_port=6651", "cluster.front_tls_http_port=8443", "tls.port=0", "tls.http_port=0"} <= set(
        given
    )
