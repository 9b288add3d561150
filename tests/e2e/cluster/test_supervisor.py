"""`standalone --brokers N` and `anabranch broker` as processes: ready, restarted, stopped, and never left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest

import anabranch
import anabranch.admin
import anabranch.blocking
from anabranch.node.supervisor import Pause
from tests.support.in_memory.credentials import Authority
from tests.support.processes.broker_process import free_port
from tests.support.processes.sigstop import stop_outside

READY_SECONDS = 60.0


class Supervised:
    def __init__(self, directory: Path, brokers: int, *more: str) -> None:
        self.port, self.http_port = free_port(), free_port()
        self.log = directory / "out"
        command = [
            sys.executable, "-m", "anabranch", "standalone", "--data", str(directory / "data"),
            "--port", str(self.port), "--http-port", str(self.http_port), "--brokers", str(brokers), *more,
        ]  # fmt: skip
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    @property
    def children(self) -> list[int]:
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in found]

    def wait(self, is_so: str, condition: object, seconds: float = READY_SECONDS) -> None:
        assert callable(condition)
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not {is_so} within {seconds:.0f} s:\n{self.log.read_text()}"
            time.sleep(0.05)

    def wait_ready(self) -> None:
        self.wait("ready", lambda: "is ready" in self.log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()


@contextmanager
def supervised(directory: Path, brokers: int, *more: str) -> Iterator[Supervised]:
    one = Supervised(directory, brokers, *more)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
            try:
                one.process.wait(40)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()


def is_alive(pid: int) -> bool:
    """A zombie counts as dead: some init processes do not reap orphans."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def check_command_of_the_banner(banner: str) -> None:
    command = re.search(r"3 processes: anabranch (.*)$", banner, re.M)
    assert command is not None
    shown = subprocess.run(
        [sys.executable, "-m", "anabranch", *command[1].split()], capture_output=True, text=True, timeout=30
    )
    assert shown.returncode == 0, shown.stderr
    assert all(f"broker-{number} " in shown.stdout for number in (1, 2, 3))


def test_three_brokers_serve_as_one_and_are_kept_alive(tmp_path: Path) -> None:
    with supervised(tmp_path, 3) as brokers:
        brokers.wait_ready()
        before = brokers.children
        assert len(before) == 3
        check_command_of_the_banner(brokers.log.read_text())
        client = pulsar.Client(
            f"pulsar://127.0.0.1:{brokers.port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        try:
            reader = client.subscribe(
                [f"t{n}" for n in range(6)], "s", initial_position=pulsar.InitialPosition.Earliest
            )
            producers = [client.create_producer(f"t{n}") for n in range(6)]
            sent: set[bytes] = set()
            for turn in range(30):
                if turn == 10:
                    os.kill(before[0], signal.SIGKILL)
                for number, producer in enumerate(producers):
                    value = f"{turn}-{number}".encode()
                    producer.send(value)
                    sent.add(value)
            got: set[bytes] = set()
            while got != sent:
                message = reader.receive(20_000)
                got.add(message.data())
                reader.acknowledge(message)
        finally:
            client.close()
        brokers.wait("three again", lambda: len(brokers.children) == 3 and brokers.children != before)
        assert re.search(r"WARNING .*broker ended broker=1 code=-9", brokers.log.read_text())
        brokers.process.send_signal(signal.SIGTERM)
        assert brokers.process.wait(40) == 0
        assert not any(map(is_alive, before))


@pytest.mark.parametrize("only", [True, False])
@pytest.mark.parametrize("brokers", [1, 2])
def test_brokers_serve_on_tls_ports(tmp_path: Path, brokers: int, only: bool) -> None:
    authority, tls_port, https_port = Authority(tmp_path), free_port(), free_port()
    files = authority.issue("broker")
    flags = [
        "--tls-cert",
        str(files.certificate),
        "--tls-key",
        str(files.key),
        "--set",
        f"tls.trust_file={authority.path}",
    ]
    flags += ["--tls-port", str(tls_port), "--tls-http-port", str(https_port), *(["--tls-only"] if only else [])]
    with supervised(tmp_path, brokers, *flags) as running:
        running.wait_ready()
        banner = running.log.read_text()
        assert f"pulsar+ssl://127.0.0.1:{tls_port}" in banner and f"https://127.0.0.1:{https_port}" in banner
        assert ("pulsar://" in banner, "http://" in banner) == (not only, not only)
        trust = anabranch.Tls(trust_file=authority.path)
        with (
            anabranch.blocking.connect(f"pulsar+ssl://127.0.0.1:{tls_port}", tls=trust) as client,
            anabranch.admin.blocking.connect(f"https://127.0.0.1:{https_port}", tls=trust) as admin,
        ):
            for number in range(8):  # topics of every broker
                with client.producer(f"t{number}") as producer:
                    producer.send(b"x")
                assert admin.topics.stats(f"t{number}")["msgInCounter"] == 1
        stock = pulsar.Client(
            f"pulsar+ssl://127.0.0.1:{tls_port}",
            tls_trust_certs_file_path=str(authority.path),
            tls_validate_hostname=True,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        for number in range(8):
            stock.create_producer(f"t{number}").send(b"y")
        stock.close()
        for port in (running.port, running.http_port):
            with socket.socket() as plain:
                assert (plain.connect_ex(("127.0.0.1", port)) != 0) is only


def test_a_broker_that_was_frozen_for_too_long_is_started_again(tmp_path: Path) -> None:
    with supervised(tmp_path, 2) as brokers:
        brokers.wait_ready()
        before = brokers.children
        client = pulsar.Client(
            f"pulsar://127.0.0.1:{brokers.port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        try:
            client.subscribe([f"t{n}" for n in range(16)], "keeps").close()  # a sweep drops data without a subscription
            producers = [client.create_producer(f"t{n}", send_timeout_millis=0) for n in range(16)]
            for producer in producers:
                producer.send(b"before")
            frozen = before[0]
            stop_outside(frozen, tmp_path / "data" / "metadata")
            try:
                brokers.wait("taken over", lambda: "log recovered" in brokers.log.read_text())
            finally:
                os.kill(frozen, signal.SIGCONT)
            brokers.wait("started again", lambda: len(brokers.children) == 2 and frozen not in brokers.children)
            assert re.search(r"WARNING .*broker ended broker=1 code=3", brokers.log.read_text())
            for producer in producers:
                producer.send(b"after")
            for number in range(16):
                reader = client.create_reader(f"t{number}", pulsar.MessageId.earliest)
                assert [reader.read_next(20_000).data() for _ in range(2)] == [b"before", b"after"]
        finally:
            client.close()


def test_no_broker_outlives_its_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path, 2) as brokers:
        brokers.wait_ready()
        children = brokers.children
        brokers.process.kill()
        brokers.process.wait()
        brokers.wait("gone", lambda: not any(map(is_alive, children)), 40)


def test_brokers_that_never_start_end_the_supervisor(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "volume.json").write_text("no volume")
    with supervised(tmp_path, 2) as brokers:
        assert brokers.process.wait(READY_SECONDS) == 1
        text = brokers.log.read_text()
        assert "broker does not start" in text
        assert "is not a volume description" in text
        assert "Traceback" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["standalone", "--brokers", "2", "--metadata", "memory:"], "only one process"),
        (["standalone", "--brokers", "2", "--port", "0"], "share one port"),
        (["standalone", "--brokers", "0"], "--brokers"),
        (["broker", "--metadata", "memory:", "--data", "x", "--port", "0"], "--id"),
        (["broker", "--data", "x"], "--metadata"),
    ],
)
def test_invalid_options_give_a_one_line_error(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "anabranch", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_pauses_grow_after_short_runs() -> None:
    pause = Pause()
    assert [pause.after(deaths) for deaths in (0, 1, 2, 3, 4, 9, 50)] == [0.0, 0.25, 0.5, 1.0, 2.0, 10.0, 10.0]
