"""The real Oxia: built once from Go modules; three shards on a standalone server, or on replicas with a coordinator."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.services import cache
from tests.services.process import Cluster, Node
from tests.support.processes.broker_process import HOST, free_port

ORIGIN = "Go modules, one mistake mended"
SHARDS = 3
_MODULE = cache.BUILDS / "oxia" / "go.mod"
_MAIN = "github.com/oxia-db/oxia/cmd"


def obtain() -> Path:
    """The server's binary. The first build takes minutes."""
    return cache.once("oxia", _MODULE, _build, within_s=2700) / "oxia"


def version() -> str:
    found = re.search(r"^require \S+ v(\S+)", _MODULE.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def cluster(folder: Path, size: int = 1, *, flags: Sequence[str] = ()) -> Cluster:
    """Not started yet. One server is standalone; more are replicas of every shard, with a coordinator.

    `flags` are for a standalone server.
    """
    if size > 1:
        return replicated(folder, size)
    binary = obtain()
    port = free_port()
    home = folder / "oxia1"
    command: list[str | Path] = [
        *(binary, "standalone", "-p", f"{HOST}:{port}", "--shards", str(SHARDS), *_common(home), *flags),
    ]
    node = Node("oxia1", home, command, port=port, probe=lambda: _serves(binary, port))
    return Cluster("oxia", [node], leads=lambda _: True)


def replicated(
    folder: Path,
    size: int,
    *,
    advertised_ports: Callable[[Node], int] | None = None,
    flags: Sequence[str | Path] = (),
    is_secured: bool = False,
) -> Cluster:
    """With `advertised_ports`, clients connect to that port instead of the server's own; a proxy listens there.

    `flags` are for the servers. `is_secured`: they demand TLS or a token, so they are not tried with a plain client.
    """
    binary = obtain()
    home = folder / "coordinator"
    home.mkdir(parents=True, exist_ok=True)
    status = home / "status.json"
    inner_ports = [free_port() for _ in range(size)]
    nodes = []
    for number, inner_port in enumerate(inner_ports, 1):
        place, port = folder / f"oxia{number}", free_port()
        command: list[str | Path] = [
            *(binary, "server", "-p", f"{HOST}:{port}", "-i", f"{HOST}:{inner_port}", *_common(place), *flags),
        ]
        # a server that comes back gets its shards only when the coordinator tries again, many seconds later
        nodes.append(Node(f"oxia{number}", place, command, port=port, probe=partial(_is_listening, port)))
    config = home / "config.yaml"
    config.write_text(_config(nodes, inner_ports, advertised_ports or (lambda node: node.port)))
    command = [
        *(binary, "coordinator", "-f", config, "-i", f"{HOST}:{free_port()}", "-m", f"{HOST}:{free_port()}"),
        *("--file-clusters-status-path", status),
    ]

    def is_ready() -> bool:
        has_leaders = None not in shard_leaders(status)
        is_untried = is_secured or advertised_ports is not None
        return has_leaders and (is_untried or all(_serves(binary, node.port) for node in nodes))

    coordinator = Node("coordinator", home, command, port=0, probe=is_ready)
    inner_of = dict(zip((node.port for node in nodes), inner_ports, strict=True))
    return Cluster(
        "oxia", nodes, leads=lambda node: shard_leaders(status)[0] == inner_of[node.port], beside=[coordinator]
    )


def shard_leaders(status: Path) -> list[int | None]:
    """The inner port of each shard's leader, as last written by the coordinator; None during an election."""
    try:
        found = json.loads(status.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return [None]
    shards = found["clusterStatus"]["namespaces"]["default"]["shards"]
    return [
        int(shard["leader"]["internal"].rpartition(":")[2]) if shard["status"] == "SteadyState" else None
        for _, shard in sorted(shards.items())
    ]


def _common(home: Path) -> list[str | Path]:
    metrics = f"{HOST}:{free_port()}"
    # a killed process loses nothing without fsync; only a power cut would
    return ["-m", metrics, "--data-dir", home / "db", "--wal-dir", home / "wal", "--wal-sync-data=false"]


def _config(nodes: Sequence[Node], inner_ports: Sequence[int], told_port: Callable[[Node], int]) -> str:
    head = f"namespaces:\n- name: default\n  initialShardCount: {SHARDS}\n  replicationFactor: {len(nodes)}\nservers:\n"
    return head + "".join(
        f"- public: {HOST}:{told_port(node)}\n  internal: {HOST}:{inner_port}\n"
        for node, inner_port in zip(nodes, inner_ports, strict=True)
    )


def _is_listening(port: int) -> bool:
    with socket.create_connection((HOST, port), timeout=1):
        return True


def _serves(binary: Path, port: int) -> bool:
    """A list goes to every shard, so it answers once all of them have a leader."""
    request = ["client", "-a", f"{HOST}:{port}", "--request-timeout", "1s", "list", "--key-min", "a", "--key-max", "b"]
    try:
        done = subprocess.run([binary, *request], capture_output=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _build(into: Path) -> None:
    """Build in a copy, because Go writes checksums beside the module file."""
    work = into / "module"
    work.mkdir()
    shutil.copy(_MODULE, work)
    name = _MAIN.rpartition("/")[0]
    cache.run(["go", "mod", "download", name], cwd=work, within_s=600)
    taken = Path(cache.run(["go", "list", "-mod=mod", "-m", "-f", "{{.Dir}}", name], cwd=work, within_s=60).strip())
    mended = shutil.copytree(taken, work / "mended")
    cache.run(["chmod", "-R", "u+w", mended], within_s=60)
    leader = mended / "server" / "leader_controller.go"
    leader.write_text(patch_source(leader.read_text()))
    cache.run(["go", "mod", "edit", "-replace", f"{name}=./mended"], cwd=work, within_s=60)
    flags = ["-mod=mod", "-trimpath", "-ldflags=-s -w"]
    cache.run(["go", "build", *flags, "-o", into / "oxia", _MAIN], cwd=work, within_s=2600)
    shutil.rmtree(work)


def patch_source(leader_controller: str) -> str:
    """Apply upstream's fix of 0.14.2 (#738), because only 0.14.0 is available.

    A write gets its log position under a lock and is appended after it. Two concurrent writers can append in the other
    order, and then the shard refuses every write until the server is restarted. The fix keeps the lock.
    """
    early = "\tterm := lc.term\n\tlc.Unlock()\n\trequest :="
    assert leader_controller.count(early) == 1, "another version: does it still need mending?"
    return leader_controller.replace(early, early.replace("lc.Unlock()", "defer lc.Unlock()"))
