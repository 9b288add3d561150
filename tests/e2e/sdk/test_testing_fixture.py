"""`anabranch.testing` as users see it: the fixture by name, the context manager, light imports, clear errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pulsar
import pytest

from anabranch.testing import Broker, BrokerFailed


def round_trip(service_url: str, topic: str) -> None:
    client = pulsar.Client(service_url)
    try:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        for number in range(3):
            producer.send(b"%d" % number)
        for number in range(3):
            message = consumer.receive(timeout_millis=5_000)
            assert message.data() == b"%d" % number
            consumer.acknowledge(message)
    finally:
        client.close()


def test_fixture_serves_the_stock_client(anabranch_broker: Broker) -> None:
    round_trip(anabranch_broker.service_url, "persistent://public/default/fixture")
    with urllib.request.urlopen(f"{anabranch_broker.http_url}/admin/v2/persistent/public/default") as answer:
        assert "persistent://public/default/fixture" in json.load(answer)


def test_the_documented_examples_run_without_a_conftest(tmp_path: Path) -> None:
    """Installing the package is all a user does."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "testing.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_data_stays_in_a_named_directory(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        client = pulsar.Client(broker.service_url)
        client.create_producer("kept").send(b"once")
        client.close()
    with Broker(tmp_path, settings={"storage.sync": "group"}) as broker:
        client = pulsar.Client(broker.service_url)
        reader = client.create_reader("kept", pulsar.MessageId.earliest)
        assert reader.read_next(timeout_millis=5_000).data() == b"once"
        client.close()


def test_two_brokers_side_by_side() -> None:
    with Broker() as one, Broker() as two:
        assert one.service_url != two.service_url
        assert one.http_url != two.http_url


def test_settings_reach_the_broker() -> None:
    with Broker(settings={"broker.auto_create_topics": False}) as broker:
        client = pulsar.Client(broker.service_url, operation_timeout_seconds=2)
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("missing")
        client.close()


def test_wrong_use_raises_broker_failed() -> None:
    with pytest.raises(ValueError, match=r"no such setting: 'broker\.nonsense'"):
        Broker(settings={"broker.nonsense": 1}).start()
    with pytest.raises(BrokerFailed, match="not running"):
        _ = Broker().service_url


def test_failed_start_raises_its_reason_and_leaves_nothing(tmp_path: Path) -> None:
    with Broker(tmp_path), pytest.raises(Exception, match=r"(?i)lock|in use|another|taken"):
        Broker(tmp_path).start()


def test_close_may_be_repeated() -> None:
    broker = Broker().start()
    broker.close()
    broker.close()
    with pytest.raises(BrokerFailed):
        _ = broker.http_url


def test_importing_it_loads_no_broker() -> None:
    code = "import sys, anabranch.testing.plugin; print([m for m in sys.modules if m.startswith('anabranch.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for layer in ("node", "broker", "storage", "protocol", "rest"):
        assert f"anabranch.{layer}" not in done.stdout
