"""The stock client against brokers with security switched on: token, basic, TLS, mTLS, permissions, HTTP lookup.

A refused TLS handshake or HTTP lookup is a timeout or a connection error for the C++ client, which connects again until
its operation timeout. The tests that expect one use short timeouts.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support.in_memory.credentials import (
    PASSWORDS,
    SECRET,
    Authority,
    KeyFiles,
    token_of,
    write_htpasswd,
    write_secret,
)
from tests.support.processes.broker_process import BrokerProcess, free_port
from tests.support.traffic.stock_calls import EARLIEST, eventually, receive_data, topic_path
from tests.support.traffic.stock_client import new_client

SHORT_S = 1  # for what is to be refused: the client tries that long
NEVER = b"another secret of enough bytes!!"


class Guarded:
    """One broker with every method on, authorization on, TLS beside the plain ports."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        server = self.authority.issue("localhost", file="server")
        self.tls_port, self.https_port = free_port(), free_port()
        settings = {
            "security.methods": "token,basic,tls",
            "security.authorization": "true",
            "security.superusers": "root",
            "security.token_secret_key": str(write_secret(directory)),
            "security.basic_file": str(write_htpasswd(directory)),
            "security.refresh_seconds": "5",
            "tls.cert_file": str(server.certificate),
            "tls.key_file": str(server.key),
            "tls.ca_file": str(self.authority.path),
            "tls.port": str(self.tls_port),
            "tls.http_port": str(self.https_port),
        }
        arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self.process = BrokerProcess(directory / "data", arguments=arguments)
        self.root = token_of("root")

    @property
    def tls_url(self) -> str:
        return f"pulsar+ssl://localhost:{self.tls_port}"

    @property
    def https_url(self) -> str:
        return f"https://localhost:{self.https_port}"

    def admin(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token or self.root}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.process.http_url + path, data=content, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                status, answer = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, answer = error.code, error.read()
        return status, json.loads(answer) if answer else None

    def namespace(self, **roles: list[str]) -> str:
        """A fresh namespace with these grants."""
        name = f"public/n-{uuid.uuid4().hex[:8]}"
        body = {"auth_policies": {"namespace_auth": roles}}
        assert self.admin("PUT", f"/admin/v2/namespaces/{name}", body)[0] == 204
        return name

    def grant(self, namespace: str, role: str, *actions: str) -> None:
        path = f"/admin/v2/namespaces/{namespace}/permissions/{role}"
        assert self.admin("POST", path, list(actions))[0] == 204


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    made.process.start()
    try:
        yield made
        log = made.process.log_path.read_text(errors="replace")
        assert made.process.log_complaints() == []
        secrets = ["eyJ", base64.b64encode(SECRET).decode(), *PASSWORDS.values()]
        assert [text for text in secrets if text in log] == [], "a secret is in the log"
        made.process.stop()
    finally:
        made.process.close()


NewClient = Callable[..., pulsar.Client]


@pytest.fixture
def connect() -> Iterator[NewClient]:
    made: list[pulsar.Client] = []

    def new(url: str, authentication: Any = None, **options: Any) -> pulsar.Client:
        made.append(new_client(url, authentication=authentication, **options))
        return made[-1]

    yield new
    for client in made:
        client.close()


def token(role: str, **options: Any) -> Any:
    return pulsar.AuthenticationToken(token_of(role, **options))


def round_trip(client: pulsar.Client, topic: str) -> None:
    """One message there and back."""
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    producer.send(b"hello")
    assert receive_data(consumer, 1) == [b"hello"]


def refused(client: pulsar.Client, topic: str) -> Any:
    with pytest.raises(pulsar.PulsarException) as caught:
        client.create_producer(topic)
    return caught.value


# -- token


def test_a_good_token(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["produce", "consume"])
    round_trip(connect(guarded.process.service_url, token("app")), f"{namespace}/t")


@pytest.mark.parametrize(
    "authentication",
    [
        None,
        pulsar.AuthenticationToken("rubbish"),
        token("root", secret=NEVER),
        token("root", seconds=-5),
        pulsar.AuthenticationBasic("alice", "wrong"),
        pulsar.AuthenticationBasic("mallory", PASSWORDS["alice"]),
    ],
    ids=["nothing", "rubbish", "forged", "expired", "wrong password", "unknown user"],
)
@pytest.mark.conformance("wrong credentials are told at once", client="Python")
def test_bad_credentials(guarded: Guarded, connect: NewClient, authentication: Any) -> None:
    client = connect(guarded.process.service_url, authentication, operation_timeout_seconds=60)
    began = time.monotonic()
    for _ in range(2):
        found = refused(client, "persistent://public/default/never")
        assert isinstance(found, pulsar.AuthenticationError), "the broker says so on the first request"
    with pytest.raises(pulsar.AuthenticationError):
        client.subscribe("persistent://public/default/never", "s")
    assert time.monotonic() - began < 30, "it was not a timeout"
    assert guarded.admin("GET", f"{topic_path('persistent://public/default/never')}/stats")[0] == 404


def test_a_supplier_refreshes_an_expiring_token(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["produce", "consume"])
    asked: list[str] = []

    def supplier() -> str:
        asked.append(token_of("app", seconds=2.5))  # long enough for a busy machine to show it while it is good
        return asked[-1]

    client = connect(guarded.process.service_url, pulsar.AuthenticationToken(supplier))
    topic = f"{namespace}/t"
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    producer.send(b"before")
    address = one_producer(guarded, f"persistent://{topic}")["address"]
    first = len(asked)
    eventually(lambda: len(asked) >= first + 2, within_s=40, what="two refreshes")
    producer.send(b"after")
    assert receive_data(consumer, 2) == [b"before", b"after"]
    assert one_producer(guarded, f"persistent://{topic}")["address"] == address, "it had to reconnect"


def one_producer(guarded: Guarded, topic: str) -> Any:
    (found,) = guarded.admin("GET", f"{topic_path(topic)}/stats")[1]["publishers"]
    return found


def test_a_token_that_expires_for_good_ends_the_session(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["produce"])
    client = connect(guarded.process.service_url, token("app", seconds=4), operation_timeout_seconds=4)
    topic = f"persistent://{namespace}/t"
    producer = client.create_producer(topic, send_timeout_millis=4_000)
    producer.send(b"in time")

    def is_gone() -> bool:
        return bool(guarded.admin("GET", f"{topic_path(topic)}/stats")[1]["publishers"] == [])

    eventually(is_gone, within_s=30, what="the session's end")
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")


# -- basic


@pytest.mark.parametrize("user", PASSWORDS)
def test_users_with_passwords(guarded: Guarded, connect: NewClient, user: str) -> None:
    namespace = guarded.namespace(**{user: ["produce", "consume"]})
    authentication = pulsar.AuthenticationBasic(user, PASSWORDS[user])
    round_trip(connect(guarded.process.service_url, authentication), f"{namespace}/t")


# -- TLS


def tls_options(guarded: Guarded) -> dict[str, Any]:
    return {"tls_trust_certs_file_path": str(guarded.authority.path), "tls_validate_hostname": True}


def test_tls_with_a_token(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["produce", "consume"])
    round_trip(connect(guarded.tls_url, token("app"), **tls_options(guarded)), f"{namespace}/t")


def test_tls_carries_large_messages(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["produce", "consume"])
    client = connect(guarded.tls_url, token("app"), **tls_options(guarded))
    consumer = client.subscribe(f"{namespace}/t", "s", initial_position=EARLIEST)
    producer = client.create_producer(f"{namespace}/t", block_if_queue_full=True)
    payloads = [bytes([number]) * 900_000 for number in range(20)]
    for payload in payloads:
        producer.send_async(payload, None)
    producer.flush()
    assert receive_data(consumer, len(payloads)) == payloads


def test_tls_of_an_unknown_authority_is_not_trusted(guarded: Guarded, connect: NewClient, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other-ca")
    client = connect(
        guarded.tls_url,
        token("root"),
        tls_trust_certs_file_path=str(other.path),
        operation_timeout_seconds=SHORT_S,
    )
    refused(client, "persistent://public/default/never")


def certificate(files: KeyFiles) -> Any:
    return pulsar.AuthenticationTLS(str(files.certificate), str(files.key))


def test_a_client_certificate_is_a_role(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(device=["produce", "consume"])
    authentication = certificate(guarded.authority.issue("device"))
    round_trip(connect(guarded.tls_url, authentication, **tls_options(guarded)), f"{namespace}/t")


def test_a_client_certificate_without_grants(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(device=["produce"])
    authentication = certificate(guarded.authority.issue("stranger"))
    client = connect(guarded.tls_url, authentication, **tls_options(guarded))
    assert isinstance(refused(client, f"{namespace}/t"), pulsar.AuthorizationError)


def test_a_client_certificate_of_another_authority(guarded: Guarded, connect: NewClient, tmp_path: Path) -> None:
    namespace = guarded.namespace(device=["produce"])
    authentication = certificate(Authority(tmp_path, "other-ca").issue("device"))
    options = {**tls_options(guarded), "operation_timeout_seconds": SHORT_S}
    refused(connect(guarded.tls_url, authentication, **options), f"{namespace}/t")


# -- permissions


def test_produce_needs_produce(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["consume"])
    client = connect(guarded.process.service_url, token("app"))
    assert isinstance(refused(client, f"{namespace}/t"), pulsar.AuthorizationError)
    guarded.grant(namespace, "app", "produce")
    client.create_producer(f"{namespace}/t").send(b"x")


def test_consume_needs_consume(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["produce"])
    client = connect(guarded.process.service_url, token("app"))
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe(f"{namespace}/t", "s")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_reader(f"{namespace}/t", pulsar.MessageId.earliest)
    guarded.grant(namespace, "app", "consume")
    client.subscribe(f"{namespace}/t", "s")


def test_lookup_needs_either(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(other=["produce"])
    client = connect(guarded.process.service_url, token("app"))
    with pytest.raises(pulsar.AuthorizationError):
        client.get_topic_partitions(f"{namespace}/t")
    guarded.grant(namespace, "app", "consume")
    assert client.get_topic_partitions(f"{namespace}/t") == [f"persistent://{namespace}/t"]


def test_a_grant_on_a_partitioned_topic_covers_its_partitions(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(other=["produce"])
    topic = f"persistent://{namespace}/p"
    assert guarded.admin("PUT", f"{topic_path(topic)}/partitions", 3)[0] == 204
    assert guarded.admin("POST", f"{topic_path(topic)}/permissions/app", ["produce", "consume"])[0] == 204
    client = connect(guarded.process.service_url, token("app"))
    round_trip(client, topic)
    assert isinstance(refused(client, f"persistent://{namespace}/q"), pulsar.AuthorizationError)


def test_subscription_with_grants_refuses_other_roles(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["consume"], auditor=["consume"])
    path = f"/admin/v2/namespaces/{namespace}/permissions/subscription/audit"
    assert guarded.admin("POST", path, ["auditor"])[0] == 204
    app = connect(guarded.process.service_url, token("app"))
    with pytest.raises(pulsar.AuthorizationError):
        app.subscribe(f"{namespace}/t", "audit")
    app.subscribe(f"{namespace}/t", "mine")
    connect(guarded.process.service_url, token("auditor")).subscribe(f"{namespace}/t", "audit")


def test_pattern_finds_only_authorized_topics(guarded: Guarded, connect: NewClient) -> None:
    import re

    namespace = guarded.namespace(app=["produce", "consume"])
    client = connect(guarded.process.service_url, token("app"))
    client.create_producer(f"{namespace}/a-1").send(b"x")
    consumer = client.subscribe(re.compile(f"persistent://{namespace}/a-.*"), "s", initial_position=EARLIEST)
    assert receive_data(consumer, 1) == [b"x"]
    closed = guarded.namespace(other=["consume"])
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(re.compile(f"persistent://{closed}/a-.*"), "s")


def test_a_grant_taken_away_stops_a_running_producer(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["produce"])
    client = connect(guarded.process.service_url, token("app"))
    producer = client.create_producer(f"{namespace}/t", send_timeout_millis=4_000)
    producer.send(b"allowed")
    assert guarded.admin("DELETE", f"/admin/v2/namespaces/{namespace}/permissions/app")[0] == 204
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"no longer")
    found = guarded.admin("GET", f"{topic_path(f'persistent://{namespace}/t')}/stats")[1]
    assert (found["msgInCounter"], found["publishers"]) == (1, [])


def test_grants_survive_a_restart(tmp_path: Path, connect: NewClient) -> None:
    made = Guarded(tmp_path)
    made.process.start()
    try:
        namespace = made.namespace(app=["produce", "consume"])
        made.process.kill9()
        made.process.start()
        round_trip(connect(made.process.service_url, token("app")), f"{namespace}/t")
        client = connect(made.process.service_url, token("other"))
        assert isinstance(refused(client, f"{namespace}/t"), pulsar.AuthorizationError)
    finally:
        made.process.close()


@pytest.fixture
def anonymous(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with passwords, where all others have the role `guest`."""
    settings = {
        "security.methods": "basic",
        "security.basic_file": str(write_htpasswd(tmp_path)),
        "security.authorization": "true",
        "security.superusers": "alice",
        "security.anonymous_role": "guest",
    }
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with BrokerProcess(tmp_path / "data", arguments=arguments) as process:
        yield process


@pytest.mark.parametrize("authentication", [None, token("root")], ids=["nothing", "a method that is not enabled"])
@pytest.mark.conformance("anonymous role", client="Python")
def test_client_without_known_method_has_the_anonymous_role(
    anonymous: BrokerProcess, connect: NewClient, authentication: Any
) -> None:
    client = connect(anonymous.service_url, authentication, operation_timeout_seconds=60)
    began = time.monotonic()
    assert isinstance(refused(client, "persistent://public/default/t"), pulsar.AuthorizationError)
    assert time.monotonic() - began < 30, "it was not a timeout"
    alice = urllib.request.Request(
        f"{anonymous.http_url}/admin/v2/namespaces/public/default/permissions/guest",
        data=b'["produce", "consume"]',
        method="POST",
        headers={
            "Authorization": "Basic " + base64.b64encode(f"alice:{PASSWORDS['alice']}".encode()).decode(),
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(alice, timeout=10) as answer:
        assert answer.status == 204
    round_trip(client, "persistent://public/default/t")
    unknown = urllib.request.Request(
        f"{anonymous.http_url}/lookup/v2/topic/persistent/public/default/t", headers={"Authorization": "Digest x"}
    )
    with urllib.request.urlopen(unknown, timeout=10) as answer:
        assert answer.status == 200
    wrong = connect(anonymous.service_url, pulsar.AuthenticationBasic("alice", "no"), operation_timeout_seconds=60)
    assert isinstance(refused(wrong, "persistent://public/default/t"), pulsar.AuthenticationError)


# -- HTTP


def test_lookup_over_http_with_a_token(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["produce", "consume"])
    round_trip(connect(guarded.process.http_url, token("app")), f"{namespace}/t")


def test_lookup_over_http_with_a_password(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(alice=["produce", "consume"])
    authentication = pulsar.AuthenticationBasic("alice", PASSWORDS["alice"])
    round_trip(connect(guarded.process.http_url, authentication), f"{namespace}/t")


def test_lookup_over_http_without_the_right(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(other=["produce"])
    for authentication in (token("app"), token("app", secret=NEVER)):
        client = connect(guarded.process.http_url, authentication, operation_timeout_seconds=SHORT_S)
        refused(client, f"{namespace}/t")


def test_lookup_over_https_with_a_token(guarded: Guarded, connect: NewClient) -> None:
    namespace = guarded.namespace(app=["produce", "consume"])
    round_trip(connect(guarded.https_url, token("app"), **tls_options(guarded)), f"{namespace}/t")


# -- names


def test_names_cannot_leave_the_data_directory(guarded: Guarded, connect: NewClient) -> None:
    before = sorted(path for path in guarded.directory.iterdir())
    client = connect(guarded.process.service_url, token("root"), operation_timeout_seconds=SHORT_S)
    for name in ("..%2F..%2Fescape", "../../../escape", "..", "a/../../../../escape", "\\..\\escape", "a\u2025/x"):
        for topic in (f"persistent://public/default/{name}", f"persistent://public/../{name}"):
            try:
                client.create_producer(topic).send(b"x")
            except (pulsar.PulsarException, ValueError):
                continue  # refused is fine too
    for path in ("..%2F..%2F..%2Fescape", "%2e%2e", "..", "a%2F..%2F..%2Fescape"):
        guarded.admin("PUT", f"/admin/v2/persistent/public/default/{path}")
        guarded.admin("PUT", f"/admin/v2/tenants/{path}", {"allowedClusters": ["standalone"]})
        guarded.admin("PUT", f"/admin/v2/namespaces/public/{path}")
    assert sorted(path for path in guarded.directory.iterdir()) == before
    inside = [path for path in guarded.directory.rglob("*") if "escape" in path.name]
    assert inside == []
