"""Apache BookKeeper: jars copied once by Maven, one ZooKeeper, bookies that sync their journals and use little disk."""

from __future__ import annotations

import asyncio
import socket
import struct
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from anabranch.runtime.clock import SystemClock
from anabranch.zookeeper import jute
from anabranch.zookeeper.address import parse_servers
from anabranch.zookeeper.connection import Connection
from tests.services import cache, jvm, zookeeper
from tests.services.process import Cluster, Node
from tests.support.processes.broker_process import free_port
from tests.support.processes.hosts import LOOPBACK, Host

ORIGIN = "Maven"
ROOT = "/ledgers"
BUILD = cache.BUILDS / "bookkeeper"
PROGRAM = "BookKeeperDriver"
_SERVER = "org.apache.bookkeeper.server.Main"
_LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
_READ = struct.Struct(">IIqq")
_SETTINGS = {
    "allowLoopback": "true",
    "zkTimeout": "10000",
    "autoRecoveryDaemonEnabled": "false",
    "enableStatistics": "false",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "8",
    "dbStorage_rocksDB_blockCacheSize": "8388608",
    "journalMaxSizeMB": "64",
    "journalPreAllocSizeMB": "4",
    "journalSyncData": "true",
    "journalMaxGroupWaitMSec": "1",
    "diskUsageThreshold": "0.98",
    "diskUsageWarnThreshold": "0.97",
    "logSizeLimit": "67108864",
    "minUsableSizeForEntryLogCreation": "1000000",
    "gcWaitTime": "10000",
}
_JVM = (
    "-Xmx128m",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",  # otherwise the bookie takes an IPv6 address with a scope, and ends
)
_LOG4J = """<Configuration status="warn">
  <Appenders><Console name="out"><PatternLayout pattern="%d{HH:mm:ss.SSS} %-5level %c{1} %msg%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


def obtain() -> Path:
    """The directory of jars."""
    return jvm.jars("bookkeeper", BUILD)


def version() -> str:
    """The version that `obtain` installs."""
    jar = next(obtain().glob("bookkeeper-server-[0-9]*.jar"))
    return jar.stem.removeprefix("bookkeeper-server-")


class BookKeeper(Cluster):
    """`nodes` is the ZooKeeper server, `bookies` are the bookies. `with` starts and stops all of them."""

    def __init__(self, store: Cluster, folder: Path, hosts: Sequence[Host], settings: Mapping[str, str]) -> None:
        super().__init__("bookkeeper", store.nodes, leads=lambda node: True)
        self._folder, self._jars, self._settings = folder, obtain(), dict(settings)
        self.bookies: list[Node] = []
        for host in hosts:
            self.add_bookie(host)

    @property
    def url(self) -> str:
        return f"bookkeeper://{self.hosts}{ROOT}"

    def start(self) -> Self:
        super().start()
        try:
            _blocking(_format(self.hosts))
            for bookie in self.bookies:
                bookie.launch()
            for bookie in self.bookies:
                bookie.wait_ready()
        except BaseException:
            self.kill9()
            raise
        return self

    def stop(self) -> None:
        for bookie in self.bookies:
            bookie.kill9()  # a clean stop takes 1.6 s, and the data is thrown away
        super().stop()

    def kill9(self) -> None:
        for bookie in self.bookies:
            bookie.kill9()
        super().kill9()

    def add_bookie(self, host: Host = LOOPBACK) -> Node:
        """One more, not started yet."""
        self.bookies.append(self._bookie(len(self.bookies) + 1, host))
        return self.bookies[-1]

    def restart(self, bookie: Node, *, is_read_only: bool = False) -> None:
        """Restart it with its data, in read-only mode or in normal mode."""
        bookie.stop()
        self._configure(bookie.folder, bookie.port, bookie.host, {"forceReadOnlyBookie": str(is_read_only).lower()})
        bookie.start()

    def is_registered(self, bookie: Node) -> bool:
        """It has its node in ZooKeeper, writable or read-only."""
        told = zookeeper.ask(self.nodes[0].port, "dump", self.nodes[0].host)
        return any(f"{ROOT}/{place}/{bookie.address}\n" in told for place in ("available", "available/readonly"))

    def _bookie(self, number: int, host: Host) -> Node:
        port, folder = free_port(), self._folder / f"bookie{number}"
        folder.mkdir(parents=True, exist_ok=True)
        self._configure(folder, port, host, {})
        (folder / "log4j2.xml").write_text(_LOG4J)
        command: list[str | Path] = ["java", *_JVM, f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}"]
        if host is not LOOPBACK:  # a bookie wants a name for its address
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} bookie{number}\n")
            command.append(f"-Djdk.net.hosts.file={folder / 'hosts'}")
        command += ["-cp", f"{self._jars}/*", _SERVER, "--conf", folder / "bookie.conf"]
        node = Node(f"bookie{number}", folder, command, port=port, probe=lambda: self._serves(node), host=host)
        return node

    def _configure(self, folder: Path, port: int, host: Host, more: Mapping[str, str]) -> None:
        settings = {
            **_SETTINGS,
            "advertisedAddress": host.address,
            "listeningInterface": host.interface,
            "bookiePort": str(port),
            "journalDirectories": str(folder / "journal"),
            "ledgerDirectories": str(folder / "ledgers"),
            "metadataServiceUri": f"zk+hierarchical://{self.hosts.replace(',', ';')}{ROOT}",
            **self._settings,
            **more,
        }
        (folder / "bookie.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _serves(self, bookie: Node) -> bool:
        """An open port is not enough: connections made before the bookie runs are closed."""
        with socket.create_connection((bookie.host.address, bookie.port), timeout=2) as connection:
            connection.settimeout(2)
            connection.sendall(_READ.pack(20, 2 << 24 | 2 << 16, 2**40, 0))
            return len(connection.recv(28)) > 0 and self.is_registered(bookie)


def cluster(folder: Path, size: int = 3, settings: Mapping[str, str] | None = None) -> BookKeeper:
    """`size` bookies on a ZooKeeper of their own; not started yet. `settings` are added to those of the bookies."""
    return BookKeeper(zookeeper.cluster(folder / "zk"), folder, [LOOPBACK] * size, settings or {})


def cluster_on(folder: Path, store: Host, hosts: Sequence[Host]) -> BookKeeper:
    """ZooKeeper on one host, and a bookie on each of the others; not started yet."""
    return BookKeeper(zookeeper.cluster(folder / "zk", host=store), folder, hosts, {})


async def _format(hosts: str) -> None:
    """What `bookkeeper shell initnewcluster` writes, without starting a JVM."""
    connection = Connection(parse_servers(hosts), SystemClock(), timeout_ms=10_000, request_s=10.0, renew_expired=True)
    await connection.open(connection.deadline())
    try:
        for path, data in (
            (ROOT, b""),
            (f"{ROOT}/available", b""),
            (f"{ROOT}/available/readonly", b""),
            (f"{ROOT}/INSTANCEID", str(uuid.uuid4()).encode()),
            (f"{ROOT}/LAYOUT", _LAYOUT),
        ):
            await connection.call(jute.create(path, data, ephemeral=False), connection.deadline())
    finally:
        await connection.close()


def _blocking(work: Coroutine[None, None, None]) -> None:
    """On a thread of its own, because this one may run an event loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


class JavaLedgers:
    """BookKeeper's Java client: `java("create", "crc32c")`, one request per line."""

    def __init__(self, hosts: str, log_path: Path) -> None:
        classes = jvm.obtain("bookkeeper", BUILD, PROGRAM)
        uri = f"zk+hierarchical://{hosts.replace(',', ';')}{ROOT}"
        self._jvm = jvm.Jvm(classes, PROGRAM, [uri], log_path, 60.0)

    def __call__(self, *words: str) -> list[str]:
        state, *found = self._jvm.ask(words)
        assert state == "ok", f"{words}: {found}"
        return found

    def close(self) -> None:
        self._jvm.close()
