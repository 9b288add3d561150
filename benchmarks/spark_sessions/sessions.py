"""The sides of the Spark benchmarks: sessions in separate processes, and the stores of their rows.

| store         | pyspark                | rows are in                                               |
|---------------|------------------------|-----------------------------------------------------------|
| `OurRows`     | this environment's     | a scalable topic of our broker, as many segments as parts |
| `PulsarRows`  | the same sessions      | a topic of Apache Pulsar, as many partitions as parts     |
| `ParquetRows` | the same session       | a directory of Parquet files                              |
| `KafkaRows`   | an older version       | a Kafka topic, as many partitions as parts                |

Each store also records the CPU time per row, including its server. On a shared machine this figure is more reliable
than rows per second.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

from anabranch.admin import blocking
from anabranch.spark.jobs.session import LOCAL_SETTINGS, SETTINGS
from benchmarks.spark_sessions.session import without_frames
from benchmarks.support import report
from benchmarks.support.measure import Failed, family_cpu_seconds
from tests.services import Cluster, spark_kafka
from tests.services.pulsar_broker import PulsarNode
from tests.support.processes.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
MASTER = "local[2]"
PARTS = 4
PULSAR_NAMESPACE = "public/bench"
WITHIN_S, TELL_EVERY_S = 600.0, 30.0
LOG_LINES, LOG_BYTES = 8, 100_000  # of a failed side and its server: lines shown, bytes searched
PLAIN = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
COMMON = {"spark.master": MASTER, "spark.sql.session.timeZone": "UTC", **PLAIN, **LOOPBACK}


class SideFailed(Failed):
    """A side failed; the text is Spark's error, shortened."""


class Side:
    """A warm Spark session elsewhere. `with` starts and ends it."""

    def __init__(
        self,
        log: Path,
        settings: Mapping[str, str],
        *,
        python: str | Path = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self._command = [
            str(python),
            str(ROOT / "benchmarks" / "spark_sessions" / "session.py"),
            json.dumps({**COMMON, **settings}),
        ]
        self._environment = {**os.environ, "PYTHONPATH": "", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=self._environment,
                cwd=self.log.parent,
            )
        return self

    @property
    def cpu_seconds(self) -> float:
        """Of the session so far: the driver, its JVM, Python workers."""
        assert self._process is not None
        return family_cpu_seconds(self._process.pid)

    def __call__(self, work: str, **parameters: Any) -> float:
        """Seconds that it took."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"work": work, **parameters}).encode() + b"\n")
            answer = json.loads(self._line(process, work))
        except (OSError, ValueError) as error:
            raise SideFailed(f"{work}: {error}", [self.log]) from error
        if "error" in answer:
            raise SideFailed(f"{work}: {answer['error']}", [self.log])
        return float(answer["seconds"])

    def _line(self, process: subprocess.Popen[bytes], work: str) -> bytes:
        assert process.stdout is not None
        began, line = time.monotonic(), b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], TELL_EVERY_S)
            passed = time.monotonic() - began
            if ready:
                found = process.stdout.read(4096)
                if not found:
                    raise SideFailed(f"{work}: the session ended", [self.log])
                line += found
            elif passed < WITHIN_S:
                report.say(f"      … {work}: {passed:.0f} s so far")
            else:
                raise SideFailed(f"{work}: no answer within {WITHIN_S:g} s", [self.log])
        return line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=30)  # the end of its input ends the session
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def our_side(log: Path, *, codec: str) -> Side:
    """A session with the settings that we recommend; `codec` is native or python."""
    return Side(log, {**SETTINGS, **LOCAL_SETTINGS}, environment={"ANABRANCH_CODEC": codec})


def kafka_side(log: Path) -> Side:
    """Spark with its own Kafka source and sink, of the newest version that is to be had."""
    jars = ":".join(map(str, spark_kafka.jars()))
    return Side(log, {"spark.driver.extraClassPath": jars}, python=spark_kafka.python())


def broker_of(place: Path, stack: ExitStack) -> BrokerProcess:
    """Our broker with default settings, except retention and deduplication (for effectively-once)."""
    settings = {
        "ANABRANCH_BROKER_DEDUPLICATION": "true",
        "ANABRANCH_TOPICS_RETENTION_MS": "-1",
        "ANABRANCH_TOPICS_RETENTION_BYTES": "-1",
    }
    return stack.enter_context(BrokerProcess(place / "data", environment=settings))


def last_words(log: Path) -> str:
    """The last lines of a log, without stack frames."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        lines = without_frames(file.read().decode(errors="replace"))
    return "\n".join([f"--- {log.name} ---", *lines[-LOG_LINES:]])


class Store(ABC):
    """The rows of a side. Each `write` makes a new copy, `query` reads the last one. Both return rows per second."""

    schema: str | None = None

    def __init__(self, side: Side, rows: int, label: str) -> None:
        self.rows, self.label = rows, label
        self.cpu_us: list[float] = []  # per row, one for each piece of work
        self._side = side
        self._copies = 0

    def write(self) -> float:
        self._copies += 1
        with self._explained():
            self._prepare(f"rows-{self._copies}")
            return self._measured("write", self._target(f"rows-{self._copies}"))

    def query(self, name: str) -> float:
        """`read` or `sum`."""
        with self._explained():
            return self._measured(name, self._origin(f"rows-{self._copies}"))

    @property
    def cpu_us_median(self) -> float:
        return round(median(self.cpu_us), 2)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Adds to a failure the label of the store and the last log lines of its session and its server."""
        try:
            yield
        except SideFailed as error:
            logs = [*error.logs, *self._server_logs()]
            raise SideFailed("\n".join([f"{self.label}, {error}", *map(last_words, logs)]), logs) from error

    def _measured(self, work: str, parameters: Mapping[str, Any]) -> float:
        before = self._side.cpu_seconds + self._server_cpu_seconds()
        seconds = self._side(work, rows=self.rows, partitions=PARTS, schema=self.schema, **parameters)
        used = self._side.cpu_seconds + self._server_cpu_seconds() - before
        self.cpu_us.append(used / self.rows * 1e6)
        return self.rows / seconds

    def _prepare(self, copy: str) -> None:  # noqa: B027  not every store needs it
        """What has to be there before the clock starts."""

    def _server_cpu_seconds(self) -> float:
        return 0.0

    def _server_logs(self) -> list[Path]:
        return []

    @abstractmethod
    def _target(self, copy: str) -> dict[str, Any]:
        """Format and options to write with."""

    @abstractmethod
    def _origin(self, copy: str) -> dict[str, Any]:
        """Format and options to read with."""


class OurRows(Store):
    schema = "key string, value binary"

    def __init__(self, side: Side, rows: int, broker: BrokerProcess, label: str) -> None:
        super().__init__(side, rows, label)
        self._broker = broker
        self._mark = label.replace(" ", "-").lower()

    def _topic(self, copy: str) -> str:
        return f"topic://public/default/{self._mark}-{copy}"

    def _prepare(self, copy: str) -> None:
        with blocking.connect(self._broker.http_url) as admin:
            admin.scalable_topics.create(self._topic(copy), segments=PARTS)

    def _server_cpu_seconds(self) -> float:
        return family_cpu_seconds(self._broker.pid)

    def _server_logs(self) -> list[Path]:
        return [self._broker.log_path]

    def _target(self, copy: str) -> dict[str, Any]:
        options = {"serviceUrl": self._broker.service_url, "topic": self._topic(copy)}
        return {"format": "anabranch", "options": options}

    def _origin(self, copy: str) -> dict[str, Any]:
        return self._target(copy)


class PulsarRows(Store):
    """A partitioned topic of Apache Pulsar, in a namespace that retains everything and deduplicates."""

    schema = "key string, value binary"

    def __init__(self, side: Side, rows: int, node: PulsarNode) -> None:
        super().__init__(side, rows, "pulsar")
        self._node = node
        with blocking.connect(node.http_url) as admin:
            admin.namespaces.create(PULSAR_NAMESPACE)
            everything = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            admin.namespaces.set_policy(PULSAR_NAMESPACE, "retention", everything)
            admin.namespaces.set_policy(PULSAR_NAMESPACE, "deduplication", True)

    def _topic(self, copy: str) -> str:
        return f"persistent://{PULSAR_NAMESPACE}/{copy}"

    def _prepare(self, copy: str) -> None:
        with blocking.connect(self._node.http_url) as admin:
            admin.topics.create(self._topic(copy), partitions=PARTS)

    def _server_cpu_seconds(self) -> float:
        return family_cpu_seconds(self._node.pid)

    def _server_logs(self) -> list[Path]:
        return [self._node.log_path]

    def _target(self, copy: str) -> dict[str, Any]:
        return {"format": "anabranch", "options": self.options(self._topic(copy))}

    def _origin(self, copy: str) -> dict[str, Any]:
        return self._target(copy)

    def options(self, topic: str) -> dict[str, str]:
        return {"serviceUrl": self._node.service_url, "adminUrl": self._node.http_url, "topic": topic}


class ParquetRows(Store):
    def __init__(self, side: Side, rows: int, folder: Path) -> None:
        super().__init__(side, rows, "parquet")
        self._folder = folder

    def _target(self, copy: str) -> dict[str, Any]:
        return {"format": "parquet", "options": {"path": str(self._folder / copy)}}

    def _origin(self, copy: str) -> dict[str, Any]:
        return self._target(copy)


class KafkaRows(Store):
    """`is_tuned`: batches as large as our entries, and as many records per poll as an Arrow batch of ours has rows."""

    def __init__(self, side: Side, rows: int, server: Cluster, label: str, *, is_tuned: bool = False) -> None:
        super().__init__(side, rows, label)
        self._server = server
        self._mark = "tuned" if is_tuned else "plain"
        self._writing = {"kafka.batch.size": "131072", "kafka.linger.ms": "5"} if is_tuned else {}
        self._reading = {"kafka.max.poll.records": "10000"} if is_tuned else {}

    def _topic(self, copy: str) -> str:
        return f"{self._mark}-{copy}"

    def _prepare(self, copy: str) -> None:
        self._side("kafka-topic", servers=self._server.hosts, topic=self._topic(copy), partitions=PARTS)

    def _server_cpu_seconds(self) -> float:
        return family_cpu_seconds(self._server.nodes[0].pid)

    def _server_logs(self) -> list[Path]:
        return [node.log_path for node in self._server.nodes]

    def _target(self, copy: str) -> dict[str, Any]:
        options = {"kafka.bootstrap.servers": self._server.hosts, "topic": self._topic(copy), **self._writing}
        return {"format": "kafka", "options": options}

    def _origin(self, copy: str) -> dict[str, Any]:
        options = {
            "kafka.bootstrap.servers": self._server.hosts,
            "subscribe": self._topic(copy),
            "startingOffsets": "earliest",
            "endingOffsets": "latest",
            **self._reading,
        }
        return {"format": "kafka", "options": options}
