"""The servers that other tests use: they start, keep their data over kill -9, elect, pause, and leave no process."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests import services
from tests.services import available, cache, oxia, zookeeper
from tests.services.process import Cluster, Node, ServerFailed
from tests.support.processes.broker_process import free_port

pytestmark = pytest.mark.slow
ALL = [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in services.KINDS]


def wait_until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def write(cluster: Cluster, key: str, value: str) -> None:
    match cluster.scheme:
        case "zk":
            with_kazoo(cluster.hosts, lambda client: client.create(f"/{key}", value.encode()))
        case "etcd":
            ask_etcd(cluster.nodes[0], "put", {"key": key, "value": value})
        case _:
            ask_oxia(cluster.nodes[0], "put", key, value)


def read(cluster: Cluster, key: str) -> str:
    match cluster.scheme:
        case "zk":
            found = with_kazoo(cluster.hosts, lambda client: client.get(f"/{key}"))
            assert isinstance(found, tuple)
            return bytes(found[0]).decode()
        case "etcd":
            answer = ask_etcd(cluster.nodes[0], "range", {"key": key})
            return base64.b64decode(answer["kvs"][0]["value"]).decode()
        case _:
            return ask_oxia(cluster.nodes[0], "get", key).strip()


def with_kazoo(hosts: str, work: Callable[[KazooClient], object]) -> object:
    client = KazooClient(hosts=hosts, timeout=10)
    client.start(timeout=20)
    try:
        return work(client)
    finally:
        client.stop()
        client.close()


def ask_etcd(node: Node, what: str, fields: dict[str, str]) -> dict[str, list[dict[str, str]]]:
    body = json.dumps({name: base64.b64encode(text.encode()).decode() for name, text in fields.items()}).encode()
    with urllib.request.urlopen(f"http://{node.address}/v3/kv/{what}", body, timeout=20) as answer:
        decoded: dict[str, list[dict[str, str]]] = json.load(answer)
    return decoded


def ask_oxia(node: Node, *words: str) -> str:
    command: list[str | Path] = [oxia.obtain(), "client", "-a", node.address, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


@pytest.mark.parametrize("kind", ALL)
def test_node_keeps_ports_and_data_over_kill_and_stop(kind: str, tmp_path: Path) -> None:
    with services.cluster(kind, tmp_path) as cluster:
        (node,) = cluster.nodes
        write(cluster, "a", "one")
        first = node.pid
        for end in (node.kill9, node.stop):
            end()
            assert not node.is_alive
            node.start()
            assert node.pid != first
            assert read(cluster, "a") == "one"
        last = node.pid
    assert not Path(f"/proc/{last}").exists()
    assert node.log_path.stat().st_size > 0


@pytest.mark.parametrize("kind", ALL)
def test_paused_node_is_silent_and_resumes(kind: str) -> None:
    cluster = services.shared(kind)
    node = cluster.nodes[0]
    assert services.shared(kind) is cluster
    node.pause()
    try:
        assert Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    finally:
        node.resume()
    node.wait_ready()


@pytest.mark.parametrize("kind", ALL)
def test_three_nodes_survive_their_leader(kind: str, tmp_path: Path) -> None:
    with services.cluster(kind, tmp_path, size=3) as cluster:
        assert len({node.port for node in cluster.nodes}) == 3
        write(cluster, "a", "one")
        old = cluster.leader()
        old.kill9()
        wait_until(lambda: cluster.leader() is not old)
        cluster.leader().wait_ready()
        assert read(Cluster(kind, [cluster.leader()], leads=lambda _: True), "a") == "one"
        old.start()
        assert old.is_alive


def test_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    zookeeper_or_skip = services.cluster("zk", tmp_path / "unused")
    assert not zookeeper_or_skip.nodes[0].is_alive
    script = (
        "import sys, time; from pathlib import Path; from tests.services import zookeeper;"
        "made = zookeeper.cluster(Path(sys.argv[1])).start(); print(made.nodes[0].pid, flush=True); time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert child.stdout is not None
    with child.stdout:
        server = int(child.stdout.readline())
        assert Path(f"/proc/{server}").exists()
        child.send_signal(signal.SIGKILL)
        child.wait()
    wait_until(lambda: not is_running(server))


def is_running(pid: int) -> bool:
    """A zombie counts as ended, because its new parent may reap it late."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_missing_server_is_a_skip_or_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(available.REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no zk here: java is not installed"):
        services.cluster("zk", tmp_path)
    monkeypatch.setenv(available.REQUIRE, "1")
    with pytest.raises(pytest.fail.Exception, match="java is not installed"):
        services.cluster("zk", tmp_path)


def test_cache_entry_is_built_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe = tmp_path / "recipe"
    recipe.write_text("1")
    builds: list[Path] = []

    def build(into: Path) -> None:
        builds.append(into)
        (into / "part").write_text("x")
        if len(builds) == 1:
            raise services.Unavailable("no network")

    with pytest.raises(services.Unavailable):
        cache.once("thing", recipe, build, within_s=5)
    entry = cache.once("thing", recipe, build, within_s=5)
    assert cache.once("thing", recipe, build, within_s=5) == entry
    assert (len(builds), [part.name for part in entry.iterdir()]) == (2, ["part"])
    assert not any(path.exists() for path in builds)
    recipe.write_text("2")
    assert cache.once("thing", recipe, build, within_s=5) != entry


def test_readiness_is_not_the_first_answer() -> None:
    node = services.shared("zk").nodes[0]
    assert "Mode: standalone" in zookeeper.ask(node.port, "srvr")


def test_a_shared_server_that_died_is_started_again() -> None:
    cluster = services.shared("etcd")
    first = cluster.nodes[0].pid
    cluster.nodes[0].kill9()
    assert services.shared("etcd") is cluster
    assert cluster.nodes[0].is_alive and cluster.nodes[0].pid != first


def test_a_server_that_does_not_start_is_not_waited_for_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []

    def probe() -> bool:
        starts.append("asked")
        return False

    node = Node("broken", tmp_path, ["false"], port=free_port(), probe=probe)
    monkeypatch.setitem(available._shared, "broken", Cluster("broken", [node], leads=lambda _: True))
    monkeypatch.setattr(available, "_false_starts", {})
    for _ in range(available.FALSE_STARTS_MAX):
        with pytest.raises(ServerFailed, match="ended while starting"):
            services.shared("broken")
    starts.clear()
    with pytest.raises(ServerFailed, match="ended while starting"):
        services.shared("broken")
    assert starts == []
