"""`consume`, `produce` and `bench` as processes that get SIGINT, SIGTERM or SIGKILL: files, reports, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.admin.errors import Refused
from tests.support.processes.broker_process import HOST, BrokerProcess

WITHIN_S = 30.0
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@dataclass
class Command:
    """The command line as a process. Its output goes to files, so that it never waits for the test."""

    process: subprocess.Popen[str]
    out: Path
    err: Path

    def first_lines(self, count: int) -> list[str]:
        deadline = time.monotonic() + WITHIN_S
        while self.out.read_text().count("\n") < count:
            assert time.monotonic() < deadline, f"{count} lines were not printed in time: {self.err.read_text()}"
            time.sleep(0.01)  # a poll of the outside world, bounded by the deadline
        return self.out.read_text().splitlines()[:count]

    def ended(self) -> tuple[int, str, str]:
        """Exit code, everything printed, complaints."""
        code, err = self.process.wait(WITHIN_S), self.err.read_text()
        assert "Traceback" not in err, err
        return code, self.out.read_text(), err


Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts the command line as a process; none is left behind."""
    started: list[subprocess.Popen[str]] = []

    def begin(url: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> Command:
        command = [sys.executable, "-m", "anabranch", *arguments, "--url", url]
        folder = tmp_path_factory.mktemp("output")
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            process = subprocess.Popen(command, text=True, stdin=stdin, stdout=out, stderr=err)
        started.append(process)
        return Command(process, folder / "out", folder / "err")

    yield begin
    for process in started:
        process.kill()
        process.wait(WITHIN_S)
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()


def payloads(lines: list[str]) -> list[str]:
    return [json.loads(line)["payload"] for line in lines]


def wait_published(broker: BrokerProcess, topic: str, count: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    with AdminClient(broker.http_url) as admin:
        while published(admin, topic) < count:
            assert time.monotonic() < deadline, f"{topic} did not get {count} messages"
            time.sleep(0.02)  # a poll of the outside world, bounded by the deadline


def published(admin: AdminClient, topic: str) -> int:
    try:
        return int(admin.get(f"/admin/v2/{topic.replace('://', '/')}/stats")["msgInCounter"])
    except Refused as missing:
        assert missing.status == 404
        return 0


def produce(start: Start, broker: BrokerProcess, topic: str, texts: list[str]) -> None:
    words = (word for one in texts for word in ("-m", one))
    code, _, err = start(broker.service_url, "produce", topic, *words).ended()
    assert code == 0, err


def consume(start: Start, broker: BrokerProcess, topic: str, file: Path, *more: str) -> Command:
    kind = ("--type", "checkpoint", "--from", "earliest", "--checkpoint", str(file), "--json")
    return start(broker.service_url, "consume", topic, *kind, *more)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_checkpoint_is_written_when_consume_is_interrupted(
    broker: BrokerProcess, topic: str, start: Start, tmp_path: Path, number: int, code: int
) -> None:
    file = tmp_path / "place"
    produce(start, broker, topic, [f"m{i}" for i in range(10)])
    process = consume(start, broker, topic, file)
    assert payloads(process.first_lines(10)) == [f"m{i}" for i in range(10)]
    process.process.send_signal(number)
    assert process.ended()[0] == code
    produce(start, broker, topic, ["m10", "m11"])
    found = consume(start, broker, topic, file, "-n", "2", "--timeout", "20s").ended()
    assert (found[0], payloads(found[1].splitlines())) == (0, ["m10", "m11"])
    assert os.listdir(tmp_path) == ["place"]


def test_checkpoint_of_interrupted_consume_covers_exactly_what_was_printed(
    broker: BrokerProcess, topic: str, start: Start, tmp_path: Path
) -> None:
    """While messages keep coming, and inside batches."""
    file, seen = tmp_path / "place", list[str]()
    load = start(broker.service_url, "produce", topic, stdin=subprocess.PIPE)
    pipe = load.process.stdin
    assert pipe is not None
    for number in range(4):
        pipe.writelines(f"m{i}\n" for i in range(number * 250, (number + 1) * 250))
        pipe.flush()
        process = consume(start, broker, topic, file)
        process.first_lines(60)
        process.process.send_signal(signal.SIGINT)
        code, out, err = process.ended()
        assert code == 130 and f"{file} has the checkpoint" in err
        seen += payloads(out.splitlines())
    pipe.close()
    assert load.ended()[0] == 0
    rest = consume(start, broker, topic, file, "--timeout", "2s").ended()[1]
    assert seen + payloads(rest.splitlines()) == [f"m{i}" for i in range(1000)]


def test_killed_consume_leaves_the_earlier_checkpoint_whole(
    broker: BrokerProcess, topic: str, start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "place"
    produce(start, broker, topic, ["m0", "m1", "m2"])
    assert consume(start, broker, topic, file, "-n", "1", "--timeout", "20s").ended()[0] == 0
    before = file.read_bytes()
    process = consume(start, broker, topic, file)
    assert payloads(process.first_lines(2)) == ["m1", "m2"]
    process.process.kill()
    assert process.ended()[0] == -signal.SIGKILL
    assert (file.read_bytes(), os.listdir(tmp_path)) == (before, ["place"])


def test_checkpoint_in_a_missing_directory_is_refused_at_once(
    broker: BrokerProcess, topic: str, start: Start, tmp_path: Path
) -> None:
    code, _, err = consume(start, broker, topic, tmp_path / "missing" / "place").ended()
    assert code == 2 and str(tmp_path / "missing") in err


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_interrupted_stream_consume_has_acknowledged_what_it_printed(
    broker: BrokerProcess, topic: str, start: Start, number: int, code: int
) -> None:
    produce(start, broker, topic, [f"m{i}" for i in range(5)])
    process = start(broker.service_url, "consume", topic, "-s", "s", "--from", "earliest", "--json")
    assert payloads(process.first_lines(5)) == [f"m{i}" for i in range(5)]
    process.process.send_signal(number)
    found = process.ended()
    assert found[0] == code and "5 messages are printed" in found[2]
    produce(start, broker, topic, ["m5"])
    rest = start(broker.service_url, "consume", topic, "-s", "s", "-n", "1", "--timeout", "20s", "--json").ended()
    assert payloads(rest[1].splitlines()) == ["m5"]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_interrupted_produce_reports_what_is_stored(
    broker: BrokerProcess, topic: str, start: Start, number: int, code: int
) -> None:
    process = start(broker.service_url, "produce", topic, "--count", "1000000", "--rate", "200", "--json")
    wait_published(broker, topic, 20)
    process.process.send_signal(number)
    found, out, err = process.ended()
    report: dict[str, Any] = json.loads(out)
    assert (found, report["interrupted"]) == (code, True)
    assert f"{report['messages']:,} of {report['messages']:,} sent messages are stored" in err
    with AdminClient(broker.http_url) as admin:
        assert published(admin, topic) == report["messages"] >= 20


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("options", [(), ("--no-consume",)])
def test_interrupted_bench_tells_its_figures(
    broker: BrokerProcess, topic: str, start: Start, number: int, code: int, options: tuple[str, ...]
) -> None:
    process = start(broker.service_url, "bench", topic, "--rate", "200", "--duration", "10m", "--json", *options)
    wait_published(broker, topic, 20)
    process.process.send_signal(number)
    found, out, err = process.ended()
    figures: dict[str, Any] = json.loads(out)
    assert (found, figures["interrupted"]) == (code, True), err
    assert figures["sent"] == figures["stored"] >= 20 and figures["publish_ms"]["p50"] > 0
    assert ("received" in figures) is (not options)


def test_lines_of_a_pipe_are_sent_as_they_come(broker: BrokerProcess, topic: str, start: Start) -> None:
    """And a signal is served while the pipe has nothing to read."""
    process = start(broker.service_url, "produce", topic, stdin=subprocess.PIPE)
    pipe = process.process.stdin
    assert pipe is not None
    pipe.write("one\ntwo\nunfinished")
    pipe.flush()
    wait_published(broker, topic, 2)
    process.process.send_signal(signal.SIGINT)
    process.process.wait(WITHIN_S)  # the pipe is still open
    code, out, err = process.ended()
    assert code == 130 and out.startswith("stored 2 messages") and "2 of 2 sent messages are stored" in err


def test_second_interruption_ends_at_once(private_broker: BrokerProcess, topic: str, start: Start) -> None:
    """The first one waits for receipts that a frozen broker does not send."""
    process = start(private_broker.service_url, "produce", topic, "--count", "1000000", "--rate", "200")
    wait_published(private_broker, topic, 20)
    private_broker.freeze()
    try:
        process.process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.process.wait(1.0)
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(5.0) == -signal.SIGINT
    finally:
        private_broker.thaw()


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_interrupted_before_the_topic_is_open(topic: str, start: Start, number: int, code: int) -> None:
    with socket.create_server((HOST, 0)) as silent:
        silent.settimeout(WITHIN_S)
        process = start(f"pulsar://{HOST}:{silent.getsockname()[1]}", "consume", topic, "-s", "s")
        with silent.accept()[0]:
            process.process.send_signal(number)
            found, out, err = process.ended()
    assert (found, out) == (code, "") and "the topic was not open yet" in err


def test_failing_produce_says_what_is_stored(private_broker: BrokerProcess, topic: str, start: Start) -> None:
    process = start(private_broker.service_url, "produce", topic, "--count", "1000000", "--rate", "200")
    wait_published(private_broker, topic, 20)
    with AdminClient(private_broker.http_url) as admin:
        admin.post(f"/admin/v2/{topic.replace('://', '/')}/terminate")
    code, _, err = process.ended()
    found = re.search(r"(\d+) of (\d+) sent messages are stored", err)
    assert code == 1 and found is not None, err
    assert 20 <= int(found[1]) < int(found[2])
