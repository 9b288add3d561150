"""The command as people meet it: start message, quick version, one-line failures, clean stop."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch import __version__
from anabranch.node.settings.node import NodeSettings
from anabranch.protocol.native import NATIVE
from anabranch.runtime.settings import reference, sample
from anabranch.storage.ledger import record_runs
from tests.support.processes.broker_process import HOST, BrokerProcess


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "anabranch", *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ, **(environment or {})},
    )


BARE_STARTS_MAX = 6.0  # an interpreter that does nothing takes 0.01-0.02 s of processor time: so below 0.2 s


def test_version_is_quick() -> None:
    """Processor time against that of an interpreter that does nothing, in turns: a loaded machine slows both."""
    bare, version = [], []
    for _ in range(5):
        began = cpu_of_children()
        subprocess.run([sys.executable, "-c", "pass"], check=True, timeout=20)
        between = cpu_of_children()
        done = run("--version")
        version.append(cpu_of_children() - between)
        bare.append(between - began)
        assert (done.returncode, done.stdout.split()[0]) == (0, "anabranch")
    assert min(version) <= BARE_STARTS_MAX * min(bare)


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def standalone(data: Path) -> Iterator[str]:
    """A broker on ports of its own choice; its start message. Ends it with SIGTERM and expects a clean end."""
    command = [sys.executable, "-m", "anabranch", "standalone", "--data", str(data), "--port", "0", "--http-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        message = ""
        while "python -c" not in message:
            line = process.stdout.readline()
            assert line, f"the broker ended before it was ready: {message}"
            message += line
        yield message
    finally:
        process.terminate()
        _, complaints = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Traceback" not in complaints


def test_start_message_says_where_and_how(tmp_path: Path) -> None:
    with standalone(tmp_path / "d") as message:
        assert re.search(r"^Anabranch \S+ is ready after \d+\.\d\d s$", message, re.M)
        assert str(tmp_path / "d") in message
        for scheme in ("pulsar", "http"):
            found = re.search(rf"{scheme}://{HOST}:(\d+)$", message, re.M)
            assert found is not None
            socket.create_connection((HOST, int(found[1])), timeout=2).close()


def test_start_log_says_whether_c_code_is_in_use(private_broker: BrokerProcess) -> None:
    deadline = time.monotonic() + 20
    while not (found := re.search(r"INFO .*: serving version=(\S+) c_code=(.*)$", private_broker.log_tail(), re.M)):
        assert time.monotonic() < deadline, private_broker.log_tail()
        time.sleep(0.01)  # a poll of the outside world, bounded by the deadline
    is_built = NATIVE is not None and record_runs.NATIVE is not None
    assert found[1] == __version__ and found[2].strip('"').startswith("in use" if is_built else "not in use")


def test_the_line_of_the_start_message_works(tmp_path: Path) -> None:
    with standalone(tmp_path / "d") as message:
        line = re.search(r'python -c "(.*)"$', message, re.M)
        assert line is not None
        done = subprocess.run([sys.executable, "-c", line[1]], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("anabranch: ")
    return line


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = str(taken.getsockname()[1])
        data = ("--data", str(tmp_path / "d"))
        for ports in (("--port", port, "--http-port", "0"), ("--port", "0", "--http-port", port)):
            line = one_line(run("standalone", *data, *ports), 1)
            assert port in line and "in use" in line


def test_data_directory_in_use(private_broker: BrokerProcess) -> None:
    line = one_line(run("standalone", "--data", str(private_broker.data), "--port", "0", "--http-port", "0"), 1)
    assert str(private_broker.data) in line


def test_data_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = one_line(run("standalone", "--data", str(tmp_path / "file"), "--port", "0", "--http-port", "0"), 1)
    assert str(tmp_path / "file") in line


def test_unknown_metadata_store(tmp_path: Path) -> None:
    arguments = ("--data", str(tmp_path), "--port", "0", "--http-port", "0", "--metadata", "mysql://u:secret@h/db")
    line = one_line(run("standalone", *arguments), 1)
    assert "no metadata store for 'mysql://h/db'; this release has memory: and sqlite:///DIR" in line


def test_all_settings_errors_are_reported_at_once(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[storage]\nsync = "sometimes"\n[network]\nprot = 1\n')
    done = run(
        "standalone",
        "--config",
        str(config),
        "--http-port",
        "99999",
        environment={"ANABRANCH_BROKER_CONNECTIONS_MAX": "x"},
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    first, *rest = done.stderr.strip().splitlines()
    assert first == "anabranch: 4 settings are wrong:"
    for name in ("storage.sync", "network.prot", "http.port", "broker.connections_max"):
        assert any(line.strip().startswith(name) for line in rest), name
    assert "did you mean network.port?" in done.stderr


def test_address_beyond_loopback_needs_a_setting(tmp_path: Path) -> None:
    done = run("standalone", "--data", str(tmp_path), "--host", "0.0.0.0", "--port", "0", "--http-port", "0")
    assert done.returncode == 2
    assert "network.insecure" in done.stderr and "http.insecure" in done.stderr


def test_sample_is_complete_and_loads(tmp_path: Path) -> None:
    done = run("config", "sample")
    assert (done.returncode, done.stdout) == (0, sample(NodeSettings))
    config = tmp_path / "c.toml"
    config.write_text(re.sub(r"^#(\w+ = [^ ].*)$", r"\1", done.stdout, flags=re.M))
    broker = BrokerProcess(tmp_path / "data", arguments=("--config", str(config)))
    with broker.start():
        broker.stop()


def test_reference_page_is_in_step() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"
    fix = "run: anabranch config sample --markdown > docs/reference/settings.md"
    assert page.read_text() == reference(NodeSettings), fix


def test_settings_from_the_environment(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", environment={"ANABRANCH_LOG_FORM": "json", "ANABRANCH_LOG_LEVEL": "info"})
    with broker.start():
        broker.stop()
    assert '"level":"info"' in broker.log_path.read_text()


def test_memory_metadata_works(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", arguments=("--metadata", "memory:"))
    with broker.start():
        broker.stop()
