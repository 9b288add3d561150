"""The real Kafka, for comparison: jars copied once by Maven, one KRaft node as broker and controller.

Heap and garbage collector are those of Kafka's start script. Settings are the defaults, except for what one node on the
loopback interface needs. Kafka does not sync to disk: it relies on replicas.
"""

from __future__ import annotations

import base64
import re
import shutil
import socket
import struct
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.services import cache
from tests.services.process import Cluster, Node
from tests.support.processes.broker_process import HOST, free_port

ORIGIN = "Maven"
_POM = cache.BUILDS / "kafka" / "pom.xml"
_JVM = (
    *("-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "60000",  # on a busy machine it would fence itself
}
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # length, key, version, correlation, no client id


def obtain() -> Path:
    """The directory of jars."""
    if shutil.which("java") is None:
        raise cache.Unavailable("java is not installed")
    return cache.once("kafka", _POM, _copy_jars, within_s=300)


def is_here() -> bool:
    """Is it in the cache already?"""
    return cache.has("kafka", _POM)


def version() -> str:
    found = re.search(r"<artifactId>kafka_2.13</artifactId>\s*<version>([^<]+)<", _POM.read_text())
    assert found is not None
    return found[1]


def cluster(folder: Path, size: int = 1, settings: Mapping[str, str] | None = None) -> Cluster:
    """Not started yet. Topics are created by their first use, with `num.partitions` of the further settings."""
    assert size == 1, "one node is all that a comparison on one machine needs"
    node = _node(obtain(), folder / "kafka1", settings or {})
    return Cluster("kafka", [node], leads=lambda _: True)


def _node(jars: Path, home: Path, further: Mapping[str, str]) -> Node:
    port, inner_port = free_port(), free_port()
    home.mkdir(parents=True, exist_ok=True)
    listeners = f"PLAINTEXT://{HOST}:{port}"
    settings = {
        **_SETTINGS,
        "listeners": f"{listeners},CONTROLLER://{HOST}:{inner_port}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@{HOST}:{inner_port}",
        "log.dirs": str(home / "data"),
        **further,
    }
    config = home / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    java = ["java", "-cp", f"{jars}/*"]
    cache.run([*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", config], within_s=120)
    command: list[str | Path] = ["java", *_JVM, *java[1:], "kafka.Kafka", config]
    return Node("kafka1", home, command, port=port, probe=lambda: _serves(port))


def _serves(port: int) -> bool:
    """True once it answers ApiVersions."""
    with socket.create_connection((HOST, port), timeout=2) as connection:
        connection.sendall(_API_VERSIONS)
        return len(connection.recv(4)) == 4


def _copy_jars(into: Path) -> None:
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    cache.run(["mvn", "-q", "-B", "-f", _POM, *goal], within_s=280)
