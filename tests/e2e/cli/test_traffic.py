"""`anabranch produce` and `anabranch consume` against a real broker, and with the stock client on the other side."""

from __future__ import annotations

import io
import json
import os
import pty
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulsar
import pytest

from anabranch.admin.client import AdminClient
from anabranch.cli.main import main
from anabranch.testing import Broker
from tests.support.traffic.stock_client import new_client

Run = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def stock(broker: Broker) -> Iterator[pulsar.Client]:
    client = new_client(broker.service_url)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def run(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Run:
    def act(*arguments: str, exits: int = 0) -> str:
        code = main([*arguments, "--url", broker.service_url])
        out, err = capsys.readouterr()
        assert code == exits, f"{arguments}: exit code {code}\n{out}{err}"
        return err if exits else out

    return act


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_there_and_back(run: Run, topic: str) -> None:
    assert run("produce", topic, "-m", "hello").startswith("stored as ")
    sent = json.loads(run("produce", topic, "-m", "grüße", "-m", "", "--key", "k 1", "--json"))
    assert (sent["messages"], sent["bytes"]) == (2, 7)
    took = objects(run("consume", topic, "-s", "s", "--from", "earliest", "-n", "3", "--timeout", "10s", "--json"))
    assert [(one["key"], one["payload"]) for one in took] == [(None, "hello"), ("k 1", "grüße"), ("k 1", "")]
    assert took[-1]["id"].rsplit(":", 1)[0] == sent["last_message_id"]


def test_lines_of_a_file_and_of_standard_input(
    run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\r\ntwo\n\nlast")
    assert run("produce", topic, "--file", str(file)).startswith("stored 4 messages")

    class Stdin:
        buffer = io.BytesIO(b"from stdin\n\xff\x00")

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Stdin())
    run("produce", topic)
    took = run("consume", topic, "-s", "s", "--from", "earliest", "-n", "6", "--timeout", "10s")
    assert [line.split("  ", 1)[1] for line in took.splitlines()] == [
        "one",
        "two",
        "",
        "last",
        "from stdin",
        "\\xff\x00",
    ]
    again = run("consume", topic, "-s", "s2", "--from", "earliest", "-n", "6", "--timeout", "10s", "--json")
    assert objects(again)[-1]["payload_base64"] == "/wA="


def test_only_printed_messages_are_acknowledged(run: Run, topic: str) -> None:
    """Also inside a batch: all ten messages are one entry."""
    run("produce", topic, *(part for i in range(10) for part in ("-m", f"m{i}")))
    seen = []
    for count in (3, 4, 3):
        text = run("consume", topic, "-s", "s", "--from", "earliest", "-n", str(count), "--timeout", "10s", "--json")
        seen += [one["payload"] for one in objects(text)]
    assert seen == [f"m{i}" for i in range(10)]
    assert run("consume", topic, "-s", "s", "--timeout", "1s") == ""


def test_generated_load_on_partitions_keeps_keys_together(run: Run, topic: str, broker: Broker) -> None:
    with AdminClient(broker.http_url) as admin:
        admin.put(f"/admin/v2/persistent/public/default/{topic}/partitions", 3)
    sent = json.loads(run("produce", topic, "--count", "3000", "--keys", "7", "--size", "1k", "--json"))
    assert (sent["messages"], sent["bytes"]) == (3000, 3_072_000)
    assert 0 < sent["latency_ms"]["p50"] <= sent["latency_ms"]["p99.9"] <= sent["latency_ms"]["max"]
    took = objects(
        run(
            "consume",
            topic,
            "-s",
            "s",
            "--from",
            "earliest",
            "-n",
            "3000",
            "--timeout",
            "20s",
            "--json",
            "--type",
            "shared",
        )
    )
    places: dict[str, set[str]] = {}
    for one in took:
        places.setdefault(one["key"], set()).add(one["topic"])
    assert len(places) == 7 and all(len(parts) == 1 for parts in places.values())
    assert len({part for parts in places.values() for part in parts}) > 1
    assert len({one["topic"] + one["id"] for one in took}) == 3000


def test_a_rate_is_kept(run: Run, topic: str) -> None:
    sent = json.loads(run("produce", topic, "--count", "200", "--rate", "400", "--json"))
    assert sent["messages"] == 200
    assert sent["seconds"] >= 199 / 400


def test_the_stock_client_reads_what_produce_wrote(run: Run, topic: str, stock: pulsar.Client) -> None:
    run("produce", topic, "-m", "a", "-m", "b", "--key", "k")
    reader = stock.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(10_000) for _ in range(2)]
    assert [(one.data(), one.partition_key()) for one in found] == [(b"a", "k"), (b"b", "k")]


def test_consume_reads_what_the_stock_client_wrote(run: Run, topic: str, stock: pulsar.Client) -> None:
    producer = stock.create_producer(topic, compression_type=pulsar.CompressionType.ZLib, batching_enabled=True)
    for i in range(5):
        producer.send_async(f"m{i}".encode(), None, partition_key=f"k{i}", properties={"i": str(i)})
    producer.flush()
    plain = stock.create_producer(topic, batching_enabled=False)
    plain.send(b"plain", event_timestamp=77)
    took = objects(run("consume", topic, "-s", "s", "--from", "earliest", "-n", "6", "--timeout", "10s", "--json"))
    assert [(one["key"], one["payload"], one.get("properties")) for one in took[:5]] == [
        (f"k{i}", f"m{i}", {"i": str(i)}) for i in range(5)
    ]
    assert (took[5]["payload"], took[5]["event_time_ms"]) == ("plain", 77)


def test_failures_are_one_line_with_a_hint(
    run: Run, topic: str, stock: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_error(text: str, *words: str) -> None:
        assert text.startswith("anabranch: ") and text.count("\n") == 1
        assert all(word in text for word in words), text

    check_error(run("consume", topic, "-s", "s", "-n", "1", "--timeout", "1s", exits=1), "0 of 1 messages")
    check_error(run("produce", "no/such/topic", "-m", "x", exits=1))
    check_error(run("produce", "a/b", "-m", "x", exits=1), "neither a short topic name")
    other = stock.subscribe(topic, "mine")
    check_error(run("consume", topic, "-s", "mine", exits=1), "--type shared")
    other.close()
    check_error(run("produce", topic, "--count", "1", "--size", "6M", exits=1), "the limit is")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert main(["produce", topic, "-m", "x", "--url", f"pulsar://127.0.0.1:{taken.getsockname()[1]}"]) == 1
    check_error(capsys.readouterr().err, "is the broker running?")
    assert main(["consume", topic, "-s", "s", "--url", "http://localhost:8080"]) == 1
    check_error(capsys.readouterr().err, "pulsar://localhost:6650")


def test_wrong_usage(run: Run, topic: str) -> None:
    run("produce", topic, "-m", "x", "--count", "3", exits=2)
    run("produce", topic, "--count", "3", "--key", "k", "--keys", "3", exits=2)
    run("produce", topic, "--count", "0", exits=2)
    run("consume", topic, exits=2)
    run("consume", topic, "-s", "s", "--from", "middle", exits=2)


def test_bench_measures_publishing_and_the_whole_way(run: Run, topic: str) -> None:
    figures = json.loads(run("bench", topic, "--rate", "500", "--duration", "1s", "--keys", "5", "--json"))
    assert figures["sent"] == figures["stored"] == figures["received"] == 500
    for name in ("publish_ms", "end_to_end_ms"):
        took = figures[name]
        assert 0 < took["p50"] <= took["p99"] <= took["p99.9"] <= took["max"]
    assert figures["rate"] <= 520


def test_bench_without_a_rate_sends_what_the_broker_takes(run: Run, topic: str) -> None:
    text = run("bench", topic, "--rate", "0", "--duration", "1s", "--no-consume")
    assert "messages/s" in text and "P99.9 MS" in text and "end to end" not in text
    run("bench", topic, "--size", "3", exits=2)
    run("bench", topic, "--duration", "0", exits=2)
    assert "anabranch: " in run("bench", "no/such/place", exits=1)


def test_payload_does_not_command_the_terminal(broker: Broker, stock: pulsar.Client, topic: str) -> None:
    """The program writes to a real terminal; what arrives there is text. A pipe gets the payload as it is."""
    attack = "\x1b]0;owned\x07\x1b[2J\u202egnp"
    producer = stock.create_producer(topic)
    producer.send(attack.encode(), partition_key="k\x1b[2J")
    command = [sys.executable, "-m", "anabranch", "consume", topic, "-s", "s", "--from", "earliest", "-n", "1"]
    command += ["--timeout", "20s", "--url", broker.service_url]
    main_end, other = pty.openpty()
    with open(main_end, "rb", buffering=0) as screen:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=other, stderr=other, timeout=60, check=False)
        os.close(other)
        shown = b""
        with suppress(OSError):  # the end of a terminal
            while data := screen.read(4096):
                shown += data
    assert done.returncode == 0, shown
    assert b"\x1b" not in shown and b"\x07" not in shown
    assert "k\\x1b[2J  \\x1b]0;owned\\x07\\x1b[2J\\u202egnp" in shown.decode()
    producer.send(attack.encode())
    piped = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout.decode()
    assert "\x1b]0;owned\x07" in piped
