"""What tests of the Spark pipeline share: a session, topics with known content, and the oracle that every message came
once and in the order of its key."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from tests.services.available import REQUIRE, is_required

RETRY_DELAYS = 300.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "60s",
}


def require_java() -> None:
    if shutil.which("java") is None:
        if is_required():
            pytest.fail(f"no java here ({REQUIRE} is set)", pytrace=False)
        pytest.skip("no java here: Spark cannot run")


@cache
def lean_home() -> str:
    """Spark's folder without `pyspark.zip`, which has no bytecode: its Python processes, of which every query starts
    some, take the installed package then and are there in a third of the time. Spark waits for them for 10 s."""
    import pyspark

    installed, made = Path(pyspark.__file__).parent, Path(tempfile.mkdtemp(prefix="anabranch-spark-home-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    (made / "python" / "lib").mkdir(parents=True)
    for path in (installed / "bin", installed / "jars", *installed.glob("python/lib/py4j*.zip")):
        (made / path.relative_to(installed)).symlink_to(path)
    return str(made)


def session(master: str = "local[2,3]") -> Any:
    """The session of this process: the first call starts it."""
    require_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("anabranch-tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as environment:  # Java alone reads it, now; others have a Spark of their own
        environment.setenv("SPARK_HOME", lean_home())
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def stderr_into(path: Path) -> Iterator[None]:
    """Processes that are started in here write their standard error to a file: what Spark's say at any time, about
    workers whose task was cancelled for instance, would be taken for the words of whatever test runs then."""
    sys.stderr.flush()
    before = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class Traffic:
    """Keyed messages `{"k": key, "n": number of the key}`, and what of them was sent."""

    def __init__(self, service_url: str, topic: str, keys: int = 16) -> None:
        self.service_url, self.topic = service_url, topic
        self.keys = [f"key-{i}" for i in range(keys)]
        self.sent: dict[str, int] = dict.fromkeys(self.keys, 0)

    def publish(self, rounds: int) -> None:
        """So many messages of every key, persisted when this returns."""
        with blocking.connect(self.service_url) as client, client.producer(self.topic) as producer:
            for _ in range(rounds):
                for key in self.keys:
                    producer.send_nowait(body(key, self.sent[key]), key=key)
                    self.sent[key] += 1
            producer.flush(60.0)

    @property
    def total(self) -> int:
        return sum(self.sent.values())


def body(key: str, number: int) -> bytes:
    return json.dumps({"k": key, "n": number}).encode()


def check_complete(rows: Iterable[Any], sent: dict[str, int]) -> None:
    """Every message once: rows have `value`."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        one = json.loads(bytes(row["value"]))
        found[one["k"]].append(one["n"])
    wrong = {key: said for key in sent if (said := difference(found[key], sent[key]))}
    assert not wrong, f"not exactly once: {wrong}"
    assert set(found) <= set(sent)


def difference(numbers: Sequence[int], sent: int) -> str:
    """Which of the numbers 0 to `sent` are missing, came more than once, or were never sent; "" if none."""
    times = Counter(numbers)
    found = {
        "missing": [one for one in range(sent) if not times[one]],
        "more than once": sorted(one for one, count in times.items() if count > 1),
        "never sent": sorted(one for one in times if not 0 <= one < sent),
    }
    return ", ".join(f"{what}: {runs(which)}" for what, which in found.items() if which)


def runs(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: 1–3, 7."""
    begins = [one for one in numbers if one - 1 not in numbers]
    ends = [one for one in numbers if one + 1 not in numbers]
    return ", ".join(f"{one}" if one == last else f"{one}–{last}" for one, last in zip(begins, ends, strict=True))


def check_key_order(rows: Iterable[Any]) -> None:
    """Rows in the order they were processed: each key's numbers ascend."""
    last: dict[str, int] = {}
    for row in rows:
        one = json.loads(bytes(row["value"]))
        assert one["n"] == last.get(one["k"], -1) + 1, f"{one} after {last.get(one['k'])}"
        last[one["k"]] = one["n"]


def wait_until(holds: Callable[[], bool], what: str, within_s: float = RETRY_DELAYS) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)  # a poll of the outside world, bounded by the deadline


def finish(query: Any, within_s: float = RETRY_DELAYS) -> None:
    """An AvailableNow query to its end; raises why it failed."""
    assert query.awaitTermination(within_s), "the query did not end in time"
    assert query.exception() is None


def offsets_in(checkpoint: Path) -> list[Any]:
    """The end of every batch as Spark keeps it."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1]) for path in files]
