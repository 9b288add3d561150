"""Connections that can never work fail at once and say why: certificates, wrong ports, token files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import anabranch
import anabranch.admin
import anabranch.admin.blocking
from anabranch import Backoff, ConnectionPolicy, Tls
from anabranch.admin import errors as admin_errors
from anabranch.cli.main import main
from anabranch.client.errors import BadOption, HandshakeFailed, TlsFailed, TokenUnreadable, Unreachable, WrongPort
from anabranch.testing.broker import Broker
from tests.support.in_memory.credentials import Authority, token_of, write_secret

TOPIC = "persistent://public/default/t"
AT_ONCE_S = 10.0  # a third of the default timeout, and much more than one attempt takes


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory)


@pytest.fixture(scope="module")
def broker(directory: Path, authority: Authority) -> Iterator[Broker]:
    files = authority.issue("broker")
    settings = {
        "security.methods": ("token",),
        "security.superusers": ("root",),
        "security.token_secret_key": str(write_secret(directory)),
        "tls.cert_file": files.certificate,
        "tls.key_file": files.key,
        "tls.port": 0,
        "tls.http_port": 0,
    }
    with Broker(settings=settings) as running:
        yield running


class Ports:
    """The four ports of the broker, each with the scheme of another."""

    def __init__(self, broker: Broker) -> None:
        with anabranch.admin.blocking.connect(broker.http_url, token=token_of("root")) as admin:
            found = admin.call("GET", f"/lookup/v2/topic/{TOPIC.replace('://', '/')}").value
        self.plain, self.tls = (_place(found[name]) for name in ("brokerUrl", "brokerUrlTls"))
        self.http, self.https = (_place(found[name]) for name in ("httpUrl", "httpUrlTls"))


def _place(url: str) -> str:
    return str(url).partition("://")[2]


@pytest.fixture(scope="module")
def ports(broker: Broker) -> Ports:
    return Ports(broker)


async def failure(url: str, **options: Any) -> anabranch.Error:
    """The error of `connect`, the same in both forms, soon, and not retryable."""
    began = time.monotonic()
    with pytest.raises(HandshakeFailed) as caught:
        await anabranch.connect(url, **options)
    with pytest.raises(type(caught.value)) as blocking:
        await asyncio.to_thread(anabranch.blocking.connect, url, **options)
    assert time.monotonic() - began < AT_ONCE_S
    assert not caught.value.retryable and blocking.value.reason == caught.value.reason
    return caught.value


async def test_certificate_that_is_not_trusted_fails_at_once(ports: Ports) -> None:
    error = await failure(f"pulsar+ssl://{ports.tls}")
    assert isinstance(error, TlsFailed)
    assert ports.tls in error.reason and "certificate" in error.reason


async def test_certificate_of_another_host_fails_at_once(ports: Ports, authority: Authority) -> None:
    port = ports.tls.rpartition(":")[2]  # 127.1 is another name of 127.0.0.1, which the certificate does not have
    error = await failure(f"pulsar+ssl://127.1:{port}", tls=Tls(trust_file=authority.path))
    assert isinstance(error, TlsFailed) and "127.1" in error.reason


@pytest.mark.parametrize(
    ("scheme", "port", "advice"),
    [
        ("pulsar+ssl", "plain", "pulsar://"),
        ("pulsar", "tls", "pulsar+ssl://"),
        ("pulsar", "http", "6650"),
        ("pulsar", "https", "TLS"),
    ],
)
async def test_port_with_another_protocol_is_named_at_once(
    ports: Ports, authority: Authority, scheme: str, port: str, advice: str
) -> None:
    place = getattr(ports, port)
    error = await failure(f"{scheme}://{place}", tls=Tls(trust_file=authority.path))
    assert isinstance(error, WrongPort)
    assert place in error.reason and advice in error.reason


async def test_tls_client_on_the_http_port_fails_at_once(ports: Ports, authority: Authority) -> None:
    await failure(f"pulsar+ssl://{ports.http}", tls=Tls(trust_file=authority.path))


async def test_wrong_port_is_dialled_once() -> None:
    dials = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dials
        dials += 1
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(WrongPort):
            await anabranch.connect(f"pulsar://127.0.0.1:{port}")
    assert dials == 1


async def test_broker_that_hangs_up_without_a_word_is_retried() -> None:
    """It may be stopping; so the next attempts decide."""
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        quick = ConnectionPolicy(backoff=Backoff(initial=0.01, maximum=0.05))
        for scheme in ("pulsar", "pulsar+ssl"):
            with pytest.raises(anabranch.Error) as caught:
                await anabranch.connect(f"{scheme}://127.0.0.1:{port}", operation_timeout=0.5, connection=quick)
            assert caught.value.retryable and isinstance(caught.value.__cause__, Unreachable)


async def test_service_with_a_wrong_port_does_not_hide_one_that_works(ports: Ports) -> None:
    async with anabranch.connect(f"pulsar://{ports.http},{ports.plain}", token=token_of("root")) as client:
        assert (await (await client.producer(TOPIC)).send(b"x", timeout=10)).ledger >= 0


async def test_missing_or_empty_token_file_fails_at_once_and_is_named(ports: Ports, tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.write_text("\n")
    for file in (missing, empty):
        for token in (file, f"file:{file}", f"file://{file}"):
            error = await failure(f"pulsar://{ports.plain}", token=token)
            assert isinstance(error, TokenUnreadable) and str(file) in error.reason


async def test_token_of_a_file_url_is_read_again_for_each_connection(ports: Ports, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token_of("root", seconds=3600) + "\n")
    quick = ConnectionPolicy(backoff=Backoff(initial=0.01, maximum=0.05))
    url = f"pulsar://{ports.plain}"
    async with (
        anabranch.connect(url, token=f"file:{file}", connection=quick) as client,
        client.producer(TOPIC, batching=None) as producer,
    ):
        await producer.send(b"first", timeout=10)
        file.unlink()  # as an operator may do for a moment while replacing it
        for connection in list(client._pool._connections.values()):
            connection.abort("a test")
        waiting = asyncio.ensure_future(producer.send(b"second", timeout=20))
        await asyncio.sleep(0.2)
        assert not waiting.done(), "an open producer waits for the file"
        file.write_text(token_of("root", seconds=3600))
        assert (await waiting).ledger >= 0


async def test_missing_tls_file_is_named(ports: Ports, authority: Authority, tmp_path: Path) -> None:
    files, missing = authority.issue("someone"), tmp_path / "missing.pem"
    for tls in (
        Tls(trust_file=missing),
        Tls(certificate_file=missing, key_file=files.key),
        Tls(certificate_file=files.certificate, key_file=missing),
    ):
        with pytest.raises(BadOption, match=str(missing)):
            anabranch.connect(f"pulsar+ssl://{ports.tls}", tls=tls)
        with pytest.raises(admin_errors.BadTls, match=str(missing)):
            anabranch.admin.connect(f"https://{ports.https}", tls=tls)
    with pytest.raises(BadOption, match=str(files.key)):
        anabranch.connect(f"pulsar+ssl://{ports.tls}", tls=Tls(trust_file=files.key))


async def test_admin_clients_name_the_same_reasons(ports: Ports, authority: Authority, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    trust = Tls(trust_file=authority.path)
    for url, options, kind in (
        (f"https://{ports.https}", {}, admin_errors.TlsFailed),
        (f"https://{ports.http}", {"tls": trust}, admin_errors.TlsFailed),
        (f"http://{ports.https}", {}, admin_errors.WrongPort),
        (f"http://{ports.plain}", {}, admin_errors.WrongPort),
        (f"http://{ports.http}", {"token": missing}, admin_errors.TokenUnreadable),
    ):
        async with anabranch.admin.connect(url, **options) as admin:
            with pytest.raises(kind) as caught:
                await admin.tenants.list()
        with anabranch.admin.blocking.connect(url, **options) as blocking, pytest.raises(kind) as other:
            await asyncio.to_thread(blocking.tenants.list)
        assert caught.value.reason == other.value.reason and not caught.value.retryable


def test_command_line_fails_at_once_with_the_reason(
    ports: Ports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    for arguments, words in (
        (["--url", f"pulsar://{ports.http}"], "HTTP port"),
        (["--url", f"pulsar+ssl://{ports.tls}"], "certificate"),
        (["--url", f"pulsar+ssl://{ports.plain}"], "does not use TLS"),
        (["--url", f"pulsar://{ports.plain}", "--token", f"file:{missing}"], str(missing)),
    ):
        began = time.monotonic()
        assert main(["produce", "t", "-m", "x", *arguments]) == 1
        text = capsys.readouterr().err
        assert words in text and text.count("\n") == 1
        assert time.monotonic() - began < AT_ONCE_S


async def test_open_producer_and_consumer_survive_a_restart_of_a_tls_broker(
    directory: Path, authority: Authority, tmp_path: Path
) -> None:
    files = authority.issue("restarted")
    settings: dict[str, object] = {"tls.cert_file": files.certificate, "tls.key_file": files.key, "tls.port": 0}
    first = Broker(tmp_path, settings=settings).start()
    try:
        with anabranch.admin.blocking.connect(first.http_url) as admin:
            url = (await asyncio.to_thread(admin.call, "GET", f"/lookup/v2/topic/{TOPIC.replace('://', '/')}")).value
        secure = url["brokerUrlTls"]
        settings["tls.port"] = int(secure.rpartition(":")[2])
        quick = ConnectionPolicy(backoff=Backoff(initial=0.01, maximum=0.2))
        async with (
            anabranch.connect(secure, tls=Tls(trust_file=authority.path), connection=quick) as client,
            client.producer(TOPIC) as producer,
            client.stream_consumer(TOPIC, subscription="s") as consumer,
        ):
            await producer.send(b"before", timeout=10)
            await asyncio.to_thread(first.close)
            first = Broker(tmp_path, settings=settings)
            starting = asyncio.to_thread(first.start)
            sending = asyncio.ensure_future(producer.send(b"after", timeout=30))
            await starting
            await sending
            found = [await consumer.receive(timeout=20) for _ in range(2)]
            assert [one and one.data for one in found] == [b"before", b"after"]
    finally:
        await asyncio.to_thread(first.close)


@pytest.fixture(scope="module", params=["missing", "unknown authority"])
def refused(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Ports, Tls, list[str]]]:
    """A broker that demands client certificates; a client without one, or with one of an authority it does not know."""
    directory = tmp_path_factory.mktemp("refused")
    (directory / "other").mkdir()
    authority, other = Authority(directory), Authority(directory / "other", "other-ca")
    files, stranger = authority.issue("broker"), other.issue("someone")
    tls, arguments = Tls(trust_file=authority.path), ["--tls-trust-certs", str(authority.path)]
    if request.param != "missing":
        tls = replace(tls, certificate_file=stranger.certificate, key_file=stranger.key)
    settings = {
        "security.methods": ("token",),
        "security.superusers": ("root",),
        "security.token_secret_key": str(write_secret(directory)),
        "tls.cert_file": files.certificate,
        "tls.key_file": files.key,
        "tls.ca_file": authority.path,
        "tls.require_client_certificate": True,
        "tls.port": 0,
        "tls.http_port": 0,
    }
    with Broker(settings=settings) as running:
        yield Ports(running), tls, arguments


async def test_refused_client_certificate_fails_at_once_with_the_reason(
    refused: tuple[Ports, Tls, list[str]],
) -> None:
    ports, tls, _ = refused
    error = await failure(f"pulsar+ssl://{ports.tls}", tls=tls, token=token_of("root"))
    assert isinstance(error, TlsFailed)
    assert ports.tls in error.reason and "certificate" in error.reason.lower()


async def test_refused_client_certificate_is_named_by_admin_clients(refused: tuple[Ports, Tls, list[str]]) -> None:
    ports, tls, _ = refused
    began = time.monotonic()
    async with anabranch.admin.connect(f"https://{ports.https}", tls=tls, token=token_of("root")) as admin:
        with pytest.raises(admin_errors.TlsFailed) as caught:
            await admin.tenants.list()
    with (
        anabranch.admin.blocking.connect(f"https://{ports.https}", tls=tls, token=token_of("root")) as blocking,
        pytest.raises(admin_errors.TlsFailed) as other,
    ):
        await asyncio.to_thread(blocking.tenants.list)
    assert time.monotonic() - began < AT_ONCE_S
    assert "certificate" in caught.value.reason.lower() and not caught.value.retryable
    assert caught.value.reason == other.value.reason


def test_refused_client_certificate_is_named_by_the_command_line(
    refused: tuple[Ports, Tls, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    ports, _, arguments = refused
    token = ["--token", token_of("root"), *arguments]
    for command in (
        ["produce", "t", "-m", "x", "--url", f"pulsar+ssl://{ports.tls}"],
        ["admin", "--admin-url", f"https://{ports.https}", "tenants", "list"],
    ):
        began = time.monotonic()
        assert main([*command, *token]) == 1
        text = capsys.readouterr().err
        assert "certificate" in text.lower() and text.count("\n") == 1
        assert time.monotonic() - began < AT_ONCE_S
