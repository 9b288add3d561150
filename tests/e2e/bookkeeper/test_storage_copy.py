"""`anabranch storage copy`: a standalone broker moves from files to bookies; ids, cursors and scalable topics stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from anabranch.admin.blocking import connect
from anabranch.cli.main import main
from tests.services import available, bookkeeper
from tests.services.cache import Unavailable
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_client import new_client
from tests.support.traffic.stock_traffic import EARLIEST

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bookkeeper")]

TOPIC, SCALABLE = "persistent://public/default/moved", "topic://public/default/grown"


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[bookkeeper.BookKeeper]:
    """One bookie without ledgers: the ids of the files must be free."""
    try:
        made = bookkeeper.cluster(tmp_path / "bookies", size=1)
    except Unavailable as error:
        available.give_up("bookkeeper", error)
    with made:
        yield made


def copied(data: Path, url: str) -> int:
    return main(["storage", "copy", "--from", "files", "--to", "bookkeeper", "--data", str(data), "--storage", url])


def read_all(broker: BrokerProcess, count: int) -> list[tuple[bytes, str]]:
    client = new_client(broker.service_url)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = [reader.read_next(10_000) for _ in range(count)]
    client.close()
    return [(one.data(), str(one.message_id())) for one in found]


def fill(broker: BrokerProcess) -> None:
    client = new_client(broker.service_url)
    producer = client.create_producer(TOPIC)
    consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
    for number in range(200):
        producer.send(b"%d" % number)
    for _ in range(120):
        consumer.acknowledge(consumer.receive(10_000))
    client.close()
    with connect(broker.http_url) as admin:
        admin.scalable_topics.create(SCALABLE, segments=2)
    assert main(["produce", SCALABLE, "--count", "50", "--keys", "7", "--service-url", broker.service_url]) == 0


def test_a_broker_moves_from_files_to_bookies(
    fresh: bookkeeper.BookKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, url = tmp_path / "data", f"{fresh.url}?ensemble=1"
    broker = BrokerProcess(data)
    broker.start()
    fill(broker)
    before = read_all(broker, 200)
    assert copied(data, url) != 0, "the broker runs"
    assert "is running as broker" in capsys.readouterr().err
    broker.stop()
    assert copied(data, url) == 0
    assert "copied and compared" in capsys.readouterr().out
    assert copied(data, url) == 0
    assert " 0 entries" in capsys.readouterr().out, "a repeated copy finds everything there"

    broker = BrokerProcess(data, arguments=["--storage", url])
    broker.start()
    try:
        assert read_all(broker, 200) == before, "message ids stay"
        client = new_client(broker.service_url)
        consumer = client.subscribe(TOPIC, "s")
        assert [int(consumer.receive(10_000).data()) for _ in range(80)] == list(range(120, 200))
        client.create_producer(TOPIC).send(b"200")
        assert consumer.receive(10_000).data() == b"200"
        client.close()
        capsys.readouterr()
        read = ["consume", SCALABLE, "--subscription", "all", "--from", "earliest", "--count", "50", "--json"]
        assert main([*read, "--service-url", broker.service_url]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 50
        with connect(broker.http_url) as admin:
            assert admin.ledgers.check()["missing"]["count"] == 0
    finally:
        broker.close()
