"""A real `anabranch standalone` process for tests, soaks and the demo: start, stop, kill, measure, read the log.

Ports are taken below the kernel's ephemeral range: a client that keeps dialling a dead broker on an ephemeral port can
end up connected to itself and hold the port against the restart.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.processes.hosts import LOOPBACK, Host
from tests.support.processes.sigstop import is_stopped, stop_outside

HOST = "127.0.0.1"
_WORKERS = 16
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_PORTS = range(12_000 + _WORKER, 32_000, _WORKERS)
"""A broker that is down keeps its number: no other test process may take it meanwhile."""
_given: set[int] = set()
_ports = random.Random(os.urandom(8))


def free_port() -> int:
    """A loopback port without a listener at this moment, outside the ephemeral range."""
    for _ in range(200):
        port = _ports.choice(_PORTS)
        if port in _given and len(_given) < len(_PORTS) // 2:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise RuntimeError("no free port found")


class BrokerFailed(RuntimeError):
    """The broker did not start, died, or did not stop; the text ends with the tail of its log."""


class BrokerProcess:
    """One data directory and one pair of ports; the process behind them may come and go."""

    def __init__(
        self,
        data: Path,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        name: str | None = None,
        program: str = "anabranch",
        host: Host = LOOPBACK,
    ) -> None:
        """`name` distinguishes brokers on one data directory. `program` is a module that takes the same arguments."""
        self.host = host
        self.data = data
        self.port = free_port()
        self.http_port = free_port()
        self.log_path = data.with_name(f"{data.name}.log" if name is None else f"{data.name}-{name}.log")
        self.started_in_s = 0.0  # how long the last start took until it was ready
        self._arguments = tuple(arguments)
        self._program = program
        self._environment = dict(environment or {})
        self._began = 0.0
        self._lives_before = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def service_url(self) -> str:
        return f"pulsar://{self.host.address}:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://{self.host.address}:{self.http_port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def lives(self) -> int:
        """How often its log reports that it became ready. A broker that was replaced restarts in the same process."""
        if not self.log_path.exists():
            return 0
        return self.log_path.read_text(errors="replace").count(" is ready after ")

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, ready_within_s: float = 60.0) -> BrokerProcess:
        """Start it and return once it serves."""
        self.launch()
        self.wait_ready(ready_within_s)
        return self

    def wait_ready(self, within_s: float = 60.0) -> None:
        """Wait until a launched process logs that it is ready, or a restarting one accepts connections.

        The ports accept connections a moment earlier. Until then HTTP requests fail with NotReady.
        """
        deadline = time.monotonic() + within_s
        try:
            for port in (self.port, self.http_port):
                self._wait_listening(port, deadline)
            while self.lives <= self._lives_before:
                self._wait_more(deadline, "it does not say that it is ready")
        except BaseException:
            self.kill9()
            raise
        self.started_in_s = time.monotonic() - self._began

    def launch(self) -> None:
        """Start it without waiting for anything."""
        assert self._process is None, "already started"
        self._began = time.monotonic()
        self._lives_before = self.lives
        command = [*self.host.prefix, sys.executable, "-m", self._program, "standalone", "--data", str(self.data)]
        command += ["--host", self.host.address, *([] if self.host is LOOPBACK else ["--insecure"])]
        command += ["--port", str(self.port), "--http-port", str(self.http_port), *self._arguments]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
            )

    def kill9(self) -> None:
        """SIGKILL: the process gets no chance to say goodbye. Absent is fine."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self, *, within_s: float = 30.0) -> None:
        """SIGTERM; the broker must end by itself, in time, with exit code 0."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise BrokerFailed(f"broker did not stop within {within_s} s of SIGTERM\n{self.log_tail()}") from None
        self._process = None
        if code != 0:
            raise BrokerFailed(f"broker ended with exit code {code} after SIGTERM\n{self.log_tail()}")

    def terminate(self) -> None:
        """SIGTERM without waiting for the end."""
        self._running().send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its sockets and files and does nothing. Returns once it stands still."""
        stop_outside(self.pid, self.data / "metadata")

    def wait_frozen(self, within_s: float = 30.0) -> None:
        """Until it stands still by its own doing."""
        deadline = time.monotonic() + within_s
        while not self.is_frozen:
            if time.monotonic() > deadline or not self.is_alive:
                raise BrokerFailed(f"broker did not stand still within {within_s} s\n{self.log_tail()}")
            time.sleep(0.01)  # a poll of the outside world, bounded by the deadline

    @property
    def is_frozen(self) -> bool:
        return is_stopped(self.pid)

    def thaw(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def wait_exit(self, *, within_s: float = 30.0) -> int:
        """The exit code of a process that ends by itself."""
        try:
            code = self._running().wait(within_s)
        except subprocess.TimeoutExpired:
            raise BrokerFailed(f"broker did not end within {within_s} s\n{self.log_tail()}") from None
        self._process = None
        return code

    def restart(self) -> BrokerProcess:
        """Clean stop and start on the same ports and data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Leave no process behind, whatever state it is in."""
        self.kill9()

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """User and system time of all threads so far."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def log_complaints(self) -> list[str]:
        """Lines that no peer may cause: tracebacks and logged errors."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return [line for line in lines if line.startswith("Traceback") or " ERROR " in line]

    def log_tail(self, lines: int = 60) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(["--- broker log ---", *text.splitlines()[-lines:]])

    def __enter__(self) -> BrokerProcess:
        return self.start() if self._process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    def _wait_listening(self, port: int, deadline: float) -> None:
        while True:
            self._wait_more(deadline, f"nothing listens on port {port}")
            try:
                socket.create_connection((self.host.address, port), timeout=1.0).close()
                return
            except OSError:
                continue

    def _wait_more(self, deadline: float, complaint: str) -> None:
        code = self._running().poll()
        if code is not None:
            raise BrokerFailed(f"broker ended with exit code {code} while starting\n{self.log_tail()}")
        if time.monotonic() > deadline:
            raise BrokerFailed(f"{complaint} in time\n{self.log_tail()}")
        time.sleep(0.01)  # a poll of the outside world, bounded by the deadline
