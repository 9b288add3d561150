"""Skip or fail when a server is not available, and the servers shared by a test process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from tests.services import chromium, etcd, oxia, pulsar_broker, zookeeper
from tests.services.cache import Unavailable
from tests.services.process import Cluster, ServerFailed
from tests.services.pulsar_admin import PulsarAdmin
from tests.services.pulsar_broker import PulsarNode
from tests.services.pulsar_go import GoClient
from tests.services.pulsar_java import JavaClient
from tests.services.pulsar_perf import PulsarPerf
from tests.services.pulsar_rust import RustClient
from tests.services.pulsar_v4 import V4Client
from tests.services.pulsar_v5 import V5Client

KINDS: dict[str, ModuleType] = {"zk": zookeeper, "etcd": etcd, "oxia": oxia}
REQUIRE = "ANABRANCH_REQUIRE_SERVICES"
FALSE_STARTS_MAX = 2
"""A server that did not come up so often will not do better: hundreds of tests would wait a minute each for it."""
_shared: dict[str, Cluster | Unavailable] = {}
_false_starts: dict[str, list[ServerFailed]] = {}


def is_required() -> bool:
    return os.environ.get(REQUIRE, "") not in ("", "0")


def cluster(kind: str, folder: Path, size: int = 1) -> Cluster:
    """A separate cluster, not started yet."""
    try:
        return _make(kind, folder, size)
    except Unavailable as error:
        give_up(kind, error)


def shared(kind: str) -> Cluster:
    """The running single server of this kind; tests share it and use separate paths, prefixes or namespaces.

    A server that died during a test is started again for the next one.
    """
    if kind not in _shared:
        folder = Path(tempfile.mkdtemp(prefix=f"anabranch-{kind}-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        try:
            made = _make(kind, folder, 1)
        except Unavailable as error:
            _shared[kind] = error
        else:
            _shared[kind] = made
            atexit.register(made.stop)  # runs before the directory is removed
    found = _shared[kind]
    if isinstance(found, Unavailable):
        give_up(kind, found)
    if not all(node.is_alive for node in found.nodes):
        _start(kind, found)
    return found


def _start(kind: str, found: Cluster) -> None:
    failures = _false_starts.setdefault(kind, [])
    if len(failures) >= FALSE_STARTS_MAX:
        raise failures[-1]
    found.kill9()
    try:
        found.start()
    except ServerFailed as error:
        failures.append(error)
        raise


def _make(kind: str, folder: Path, size: int) -> Cluster:
    made = KINDS[kind].cluster(folder, size)
    assert isinstance(made, Cluster)
    return made


def pulsar_admin(http_url: str, folder: Path, **settings: str) -> PulsarAdmin:
    """The real pulsar-admin for a broker; the caller closes it."""
    try:
        return PulsarAdmin(http_url, folder / "pulsar-admin.log", **settings)
    except Unavailable as error:
        give_up("pulsar-admin", error)


def pulsar_v4(service_url: str, folder: Path) -> V4Client:
    """The real classic Java client for a broker; the caller closes it."""
    try:
        return V4Client(service_url, folder / "pulsar-v4.log")
    except Unavailable as error:
        give_up("pulsar-v4", error)


def pulsar_v5(service_url: str, folder: Path) -> V5Client:
    """Pulsar's V5 client for a broker; the caller closes it."""
    try:
        return V5Client(service_url, folder / "pulsar-v5.log")
    except Unavailable as error:
        give_up("pulsar-v5", error)


def pulsar_java(service_url: str, folder: Path) -> JavaClient:
    """Features of Pulsar's classic Java client for a broker; the caller closes it."""
    try:
        return JavaClient(service_url, folder / "pulsar-java.log")
    except Unavailable as error:
        give_up("pulsar-java", error)


def pulsar_perf(service_url: str) -> PulsarPerf:
    """Pulsar's load generator for a broker."""
    try:
        return PulsarPerf(service_url)
    except Unavailable as error:
        give_up("pulsar-perf", error)


def pulsar_rust(service_url: str) -> RustClient:
    """The Rust client for a broker; builds it, for minutes, if it is not there."""
    try:
        return RustClient(service_url)
    except Unavailable as error:
        give_up("pulsar-rust", error)


def pulsar_go(url: str, *, token: str | None = None) -> GoClient:
    """Pulsar's Go client for a broker."""
    try:
        return GoClient(url, token=token)
    except Unavailable as error:
        give_up("pulsar-go", error)


def pulsar_broker_node(folder: Path) -> PulsarNode:
    """Apache Pulsar's broker, not started yet; the caller stops it."""
    try:
        return pulsar_broker.node(folder)
    except Unavailable as error:
        give_up("pulsar", error)


def browser() -> str:
    """The path of a real browser."""
    try:
        return chromium.obtain()
    except Unavailable as error:
        give_up("chromium", error)


def give_up(kind: str, error: Unavailable) -> NoReturn:
    reason = f"no {kind} here: {error}"
    if is_required():
        pytest.fail(f"{reason} ({REQUIRE} is set)", pytrace=False)
    pytest.skip(reason)
