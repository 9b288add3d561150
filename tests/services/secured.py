"""ZooKeeper, etcd and Oxia servers that demand TLS, a client certificate and credentials.

    with secured("etcd", tmp_path) as server:
        open_store(server.url("/mine"), clock)

ZooKeeper wants digest authentication, etcd a user with a role, Oxia a bearer token of an OpenID issuer, which is a
small HTTP server of the test.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.services import available, cache, etcd, oxia, zookeeper
from tests.services.process import Cluster
from tests.support.in_memory.credentials import Authority
from tests.support.processes.broker_process import HOST, free_port

USER, PASSWORD = "anabranch", "a word: with, ünusual\tsigns"
AUDIENCE = "oxia-of-tests"


@dataclass(frozen=True)
class SecuredServer:
    """A running server. `options` are those of its metadata URL, complete and right."""

    kind: str
    port: int
    folder: Path
    options: dict[str, str]
    cluster: Cluster
    authority: Authority

    def url(self, path: str, **changed: str | None) -> str:
        """With some options changed, or left out (None); `_` in a name stands for `-`."""
        given = {name.replace("_", "-"): value for name, value in changed.items()}
        options = {name: value for name, value in (self.options | given).items() if value is not None}
        return f"{self.kind}://{HOST}:{self.port}{path}?{urlencode(options)}"

    def secret(self, name: str, content: str) -> str:
        """The path of a new file with this content."""
        path = self.folder / name
        path.write_text(content + "\n", encoding="utf-8")
        return str(path)


@contextmanager
def secured(kind: str, folder: Path) -> Iterator[SecuredServer]:
    with ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority(folder, f"{kind}-ca")
        mine = authority.issue(f"{kind}-client", file=f"{kind}-client")
        options = {"ca": str(authority.path), "cert": str(mine.certificate), "key": str(mine.key)}
        try:
            start = {"zk": _zookeeper, "etcd": _etcd, "oxia": _oxia}[kind]
            yield start(stack, folder, authority, options)
        except cache.Unavailable as error:
            available.give_up(kind, error)


def _zookeeper(stack: ExitStack, folder: Path, authority: Authority, options: dict[str, str]) -> SecuredServer:
    files = authority.issue("zk-server", file="zk-server")
    both = folder / "zk-server.both.pem"
    both.write_bytes(files.key.read_bytes() + files.certificate.read_bytes())
    port = free_port()
    cluster = zookeeper.cluster(
        folder,
        settings={
            "secureClientPort": str(port),
            "secureClientPortAddress": HOST,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(both),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(authority.path),
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
            "enforce.auth.enabled": "true",
            "enforce.auth.schemes": "digest",
        },
    )
    stack.enter_context(cluster)
    word = folder / "password"
    word.write_text(PASSWORD + "\n", encoding="utf-8")
    options |= {"user": USER, "password-file": str(word)}
    return SecuredServer("zk", port, folder, options, cluster, authority)


def _etcd(stack: ExitStack, folder: Path, authority: Authority, options: dict[str, str]) -> SecuredServer:
    files = authority.issue("etcd-server", file="etcd-server")
    tls = {"cert-file": files.certificate, "key-file": files.key, "trusted-ca-file": authority.path}
    flags = ["--client-cert-auth", "--auth-token-ttl=2", *(f"--{name}={value}" for name, value in tls.items())]
    cluster = etcd.cluster(folder, flags=flags, scheme="https")
    stack.enter_context(cluster)
    port = cluster.nodes[0].port
    access = [f"--{name}={value}" for name, value in (("cacert", options["ca"]), *_pair(options))]

    def run(*words: str) -> None:
        binary = etcd.obtain().with_name("etcdctl")
        cache.run([binary, f"--endpoints=https://{HOST}:{port}", *access, *words], within_s=20)

    run("user", "add", "root:toor")
    run("user", "grant-role", "root", "root")
    run("user", "add", f"{USER}:{PASSWORD}")
    run("role", "add", "mine")
    run("role", "grant-permission", "mine", "readwrite", "--prefix=true", "/mine")
    run("user", "grant-role", USER, "mine")
    run("auth", "enable")
    word = folder / "password"
    word.write_text(PASSWORD + "\n", encoding="utf-8")
    options |= {"user": USER, "password-file": str(word)}
    return SecuredServer("etcd", port, folder, options, cluster, authority)


def _pair(options: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return ("cert", options["cert"]), ("key", options["key"])


def _oxia(stack: ExitStack, folder: Path, authority: Authority, options: dict[str, str]) -> SecuredServer:
    files = authority.issue("oxia-server", file="oxia-server")
    issuer = stack.enter_context(Issuer())
    rules = {"allowedIssueURLs": issuer.url, "allowedAudiences": AUDIENCE}
    cluster = oxia.replicated(
        folder,
        1,
        flags=[
            *("--tls-cert-file", files.certificate, "--tls-key-file", files.key),
            *("--tls-trusted-ca-file", authority.path, "--tls-client-auth"),
            *("--auth-provider-name", "oidc", "--auth-provider-params", json.dumps(rules)),
        ],
        is_secured=True,
    )
    stack.enter_context(cluster)
    token = folder / "token"
    token.write_text(issuer.token() + "\n")
    options |= {"token-file": str(token)}
    return SecuredServer("oxia", cluster.nodes[0].port, folder, options, cluster, authority)


class Issuer:
    """An OpenID issuer: its description, its public key, and tokens."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        answers: dict[str, dict[str, Any]] = {"/keys": {"keys": [{**public, "kid": "1", "alg": "RS256", "use": "sig"}]}}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(answers.get(self.path, {})).encode()
                self.send_response(200 if self.path in answers else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Not logged: the test's output is for the test."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_port}"
        answers["/.well-known/openid-configuration"] = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/none",
            "id_token_signing_alg_values_supported": ["RS256"],
        }
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def token(self, *, audience: str = AUDIENCE) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "sub": USER, "aud": audience, "iat": now, "exp": now + 3600}
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": "1"})

    def __enter__(self) -> Issuer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
