"""Apache Pulsar's broker (standalone, 5.0.0-M1): jars copied once by Maven, one process with broker and bookie.

Settings that matter to a client are those of the released standalone configuration; ports, directories and memory are
set for tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.services import cache
from tests.services.process import Cluster, Node
from tests.support.processes.broker_process import HOST, free_port

ORIGIN = "Maven"
JAVA_MIN = 21
DELAY_TICK_MS = 100
_POM = cache.BUILDS / "pulsar_broker" / "pom.xml"
_MAIN = "org.apache.pulsar.PulsarStandaloneStarter"
_BREAK_TLS = "bc-fips,bcpkix-fips,bcutil-fips,bctls-fips"  # beside the plain ones they end the start
_SETTINGS = {
    "clusterName": "standalone",
    "bindAddress": HOST,
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "loadBalancerEnabled": "false",
    "brokerDeleteInactiveTopicsEnabled": "false",  # what a test left idle for a minute is still there
    "activeConsumerFailoverDelayTimeMillis": "50",  # of 1000: how long the first reader of a stream waits
    "delayedDeliveryTickTimeMillis": str(DELAY_TICK_MS),  # of 1000: how early a delayed message may come
    "allowLoopback": "true",
    "listeningInterface": "lo",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "nettyMaxFrameSizeBytes": "5253120",  # or the bookie refuses the largest message that the broker takes
    "journalSyncData": "false",  # as released: a killed process loses nothing; only a power cut would
}
_OPENED = (
    "java.base/java.io",
    "java.base/java.util.zip",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
_JVM = (
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--enable-native-access=ALL-UNNAMED",
)
_LOG4J = """<Configuration status="warn">
  <Appenders><Console name="out"><PatternLayout pattern="%d{HH:mm:ss.SSS} %-5level %c{1} %msg%n"/></Console></Appenders>
  <Loggers><Root level="info"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


def obtain() -> Path:
    """The directory of jars."""
    java()
    return cache.once("pulsar-broker", _POM, _copy_jars, within_s=580)


def version() -> str:
    """The version that `obtain` installs."""
    jar = next(obtain().glob("pulsar-broker-[0-9]*.jar"))
    return jar.stem.removeprefix("pulsar-broker-")


def java() -> Path:
    """A recent Java: of JAVA_HOME, on the path, or installed beside it."""
    found = {home: _java_version(home) for home in _java_homes()}
    for home, number in found.items():
        if number >= JAVA_MIN:
            return home / "bin" / "java"
    raise cache.Unavailable(f"no Java {JAVA_MIN} or newer among {[str(home) for home in found]}")


def _java_homes() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if (program := shutil.which("java")) is not None:
        yield Path(program).resolve().parent.parent
    yield from sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)


def _java_version(home: Path) -> int:
    """0 if there is none."""
    release = home / "release"
    if not release.is_file() or not (home / "bin" / "java").is_file():
        return 0
    version = re.search(r'^JAVA_VERSION="(\d+)', release.read_text(), re.MULTILINE)
    return int(version[1]) if version else 0


class PulsarNode(Node):
    """Its port is that of the binary protocol."""

    http_port: int

    @property
    def service_url(self) -> str:
        return f"pulsar://{self.address}"

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"


def cluster(folder: Path, size: int = 1) -> Cluster:
    """Not started yet; always one process."""
    assert size == 1
    return Cluster("pulsar", [node(folder)], leads=lambda one: True)


def node(folder: Path, jars: Path | None = None, more: Mapping[str, str] | None = None) -> PulsarNode:
    """`more` are settings of `standalone.conf`."""
    jars = jars or obtain()
    port, http_port = free_port(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**_SETTINGS, **(more or {}), "brokerServicePort": str(port), "webServicePort": str(http_port)}
    (folder / "standalone.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (folder / "log4j2.xml").write_text(_LOG4J)
    opened = [part for name in _OPENED for part in ("--add-opens", f"{name}=ALL-UNNAMED")]
    command: list[str | Path] = [java(), *_JVM, *opened, f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}"]
    command += ["-cp", f"{jars}/*", _MAIN, "--config", folder / "standalone.conf"]
    command += ["--no-functions-worker", "--no-stream-storage", "-a", "localhost"]
    command += ["--metadata-dir", folder / "metadata", "--bookkeeper-dir", folder / "bookkeeper"]
    made = PulsarNode("pulsar", folder, command, port=port, probe=lambda: _serves(http_port))
    made.http_port = http_port
    return made


def _serves(http_port: int) -> bool:
    """The web port answers before the default namespace exists."""
    with urllib.request.urlopen(f"http://{HOST}:{http_port}/admin/v2/namespaces/public", timeout=2) as answer:
        return "public/default" in json.load(answer)


def _copy_jars(into: Path) -> None:
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    left_out = [f"-DexcludeArtifactIds={_BREAK_TLS}", "-DexcludeClassifiers=tests"]
    cache.run(["mvn", "-q", "-B", "-f", _POM, *goal, *left_out], within_s=560)
