"""What outlives a broker for the attempts of a task: the checksum of what they stored, and which of them is right. Real
processes: killed with `kill -9`, stopped cleanly, their topics taken over by another broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.client.errors import ProducerFenced
from anabranch.spark.client.access import Access
from anabranch.spark.client.cluster_client import ClusterClient
from anabranch.spark.sink.replay_check import NonDeterministicReplay
from anabranch.spark.sink.row_checksum import read_note
from anabranch.spark.sink.segment_writer import Rows
from anabranch.spark.sink.topic_writer import OutletOptions, TopicWriter
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses
from tests.support.spark.session import body

FIRST = 3 << 32
TOPIC = "persistent://public/default/replayed"
SETTINGS = {"ANABRANCH_BROKER_DEDUPLICATION": "true"}


def rows(count: int, other: int | None = None) -> Rows:
    """Keyed rows of a task; the value of `other` is not what it was."""
    values = [body("key", n) + (b" " if n == other else b"") for n in range(count)]
    return Rows(FIRST, pa.array(values, pa.binary()), pa.array(["key"] * count))


def attempt(cluster: ClusterClient, epoch: int, some: Rows) -> TopicWriter:
    """Everything stored; still attached."""
    made = TopicWriter(cluster, TOPIC, "task", epoch, OutletOptions(entry_rows=7))
    try:
        made.send(some)
        made.finish()
    except BaseException:
        made.close()
        raise
    return made


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", environment=SETTINGS) as made:
        yield made


def killed(broker: BrokerProcess) -> None:
    broker.kill9()
    broker.start()


def stopped(broker: BrokerProcess) -> None:
    broker.restart()


@pytest.mark.parametrize("again", [killed, stopped])
def test_checksum_and_fence_outlive_the_broker(broker: BrokerProcess, again: Callable[[BrokerProcess], None]) -> None:
    cluster = ClusterClient(Access.of(broker.service_url, {}, 30_000))
    attempt(cluster, 5, rows(40)).close()
    again(broker)
    with pytest.raises(ProducerFenced, match="a later attempt of 'task' has taken over"):
        attempt(cluster, 4, rows(40))
    with pytest.raises(NonDeterministicReplay, match=r"the 40 rows .* are not the 40 that were stored"):
        attempt(cluster, 6, rows(40, other=0))
    whole = attempt(cluster, 7, rows(60))
    assert whole.rows_known == 40
    whole.close()
    again(broker)
    same = attempt(cluster, 8, rows(60))
    assert same.rows_known == 60
    same.close()
    cluster.close()


def test_earlier_attempt_after_a_crash_is_refused(broker: BrokerProcess) -> None:
    """Both were attached when the broker died; the earlier one must not write between what the later one knows and
    what it sends."""
    cluster = ClusterClient(Access.of(broker.service_url, {}, 30_000))
    zombie = attempt(cluster, 1, rows(10))
    heir = attempt(cluster, 2, rows(20))
    killed(broker)
    more = rows(30).values.slice(20)
    with pytest.raises(ProducerFenced):
        zombie.send(Rows(FIRST + 20, more, pa.array(["key"] * 10)))
        zombie.finish()
    zombie.close()
    heir.send(Rows(FIRST + 20, more, pa.array(["key"] * 10)))
    heir.finish()
    heir.close()
    extent = cluster.extents({TOPIC: {}})[TOPIC]
    assert extent.messages == 30
    cluster.close()


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
def test_checksum_and_fence_go_with_the_topic_to_another_broker(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 2, session_ms=2_000, environment=SETTINGS) as brokers:
        cluster = ClusterClient(Access.of(brokers.service_url, {}, 30_000))
        attempt(cluster, 5, rows(40)).close()
        brokers.owner(TOPIC).kill9()
        with pytest.raises(ProducerFenced):
            attempt(cluster, 4, rows(40))
        with pytest.raises(NonDeterministicReplay):
            attempt(cluster, 6, rows(40, other=39))
        same = attempt(cluster, 7, rows(40))
        assert same.rows_known == 40
        same.close()
        cluster.close()


def test_notes_that_are_not_ours() -> None:
    assert read_note(b"") is None
    assert read_note(b"\x02" + b"\x00" * 28) is None
    assert read_note(b"x" * 100) is None
