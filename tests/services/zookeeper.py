"""The real ZooKeeper: jars copied once by Maven, one or three servers, with short ticks for tests."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from tests.services import cache
from tests.services.process import Cluster, Node
from tests.support.processes.broker_process import HOST, free_port
from tests.support.processes.hosts import LOOPBACK, Host

ORIGIN = "Maven"
_POM = cache.BUILDS / "zookeeper" / "pom.xml"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_SETTINGS = {
    "tickTime": "500",  # sessions of 1 s are possible; the default is 4 s
    "initLimit": "40",
    "syncLimit": "20",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
}
HEAP = "512m"
_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.extendedTypesEnabled=true",
    "-Dzookeeper.forceSync=no",  # a killed process loses nothing; only a power cut would
    "-Dzookeeper.preAllocSize=4096",
)
_LOGBACK = """<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"""


def obtain() -> Path:
    """The directory of jars."""
    if shutil.which("java") is None:
        raise cache.Unavailable("java is not installed")
    return cache.once("zookeeper", _POM, _copy_jars, within_s=300)


def version() -> str:
    """The version that `obtain` installs."""
    jar = next(obtain().glob("zookeeper-[0-9]*.jar"))
    return jar.stem.removeprefix("zookeeper-")


def cluster(
    folder: Path,
    size: int = 1,
    settings: Mapping[str, str] | None = None,
    *,
    heap: str = HEAP,
    host: Host = LOOPBACK,
) -> Cluster:
    """Not started yet. One server is standalone, more are an ensemble. `settings` are added to `zoo.cfg`."""
    jars = obtain()
    members = {
        number: f"{HOST}:{free_port()}:{free_port()}" for number in range(1, size + 1)
    }  # for quorum and election
    others = members if size > 1 else {}
    nodes = [_node(jars, folder / f"zk{number}", number, others, settings or {}, heap, host) for number in members]
    return Cluster("zk", nodes, leads=lambda node: _mode(node.port, host) in ("leader", "standalone"))


def ask(port: int, word: str, host: Host = LOOPBACK) -> str:
    """The answer to a four-letter word; OSError if there is none."""
    with socket.create_connection((host.address, port), timeout=1) as connection:
        connection.sendall(word.encode())
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer.decode()


def _mode(port: int, host: Host) -> str | None:
    """`ruok` answers before requests are served; the mode is reported only afterwards."""
    found = re.search(r"^Mode: (\w+)", ask(port, "srvr", host), re.MULTILINE)
    return found[1] if found else None


def _node(
    jars: Path, folder: Path, number: int, members: dict[int, str], more: Mapping[str, str], heap: str, host: Host
) -> Node:
    port = free_port()
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    settings = {**_SETTINGS, "dataDir": str(data), "clientPort": str(port), "clientPortAddress": host.address, **more}
    settings |= {f"server.{member}": address for member, address in members.items()}
    (data / "myid").write_text(f"{number}\n")
    (folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (folder / "logback.xml").write_text(_LOGBACK)
    logback = f"-Dlogback.configurationFile={folder / 'logback.xml'}"
    command: list[str | Path] = ["java", f"-Xmx{heap}", *_JVM, logback, "-cp", f"{jars}/*", _MAIN, folder / "zoo.cfg"]
    return Node(f"zk{number}", folder, command, port=port, probe=lambda: _mode(port, host) is not None, host=host)


def _copy_jars(into: Path) -> None:
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    cache.run(["mvn", "-q", "-B", "-f", _POM, *goal], within_s=280)
