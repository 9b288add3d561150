"""Server processes and clusters of them, for any server.

A node keeps its ports and its directory while its process may end and start again. If the test process dies, a watching
shell ends the server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.processes.hosts import LOOPBACK, Host

_POLL_S = 0.02


class ServerFailed(RuntimeError):
    """The server did not start or died; the text ends with the tail of its log."""


class Node:
    """One server of one kind. `probe` answers whether it serves requests; it may raise OSError for "no"."""

    def __init__(
        self,
        name: str,
        folder: Path,
        command: Sequence[str | Path],
        *,
        port: int,
        probe: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        host: Host = LOOPBACK,
    ) -> None:
        self.host = host
        self.name = name
        self.folder = folder
        self.port = port
        self.log_path = folder / f"{name}.log"
        self.ready_in_s = 0.0  # how long the last start took
        self._command = [*host.prefix, *(str(part) for part in command)]
        self._probe = probe
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self, *, within_s: float = 60.0) -> None:
        """Start it and return once it serves requests."""
        self.launch()
        self.wait_ready(within_s=within_s)

    def launch(self) -> None:
        """Start it without waiting: the members of an ensemble are ready only together."""
        assert not self.is_alive, f"{self.name} runs already"
        self._began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
                start_new_session=True,  # a Ctrl-C at the terminal is the test run's business
            )
        # its input ends with this process, whatever that dies of
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -9 "$1" 2>/dev/null', "guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def wait_ready(self, *, within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not self._answers():
            if not self.is_alive:
                raise ServerFailed(f"{self.name} ended while starting\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} is not ready after {within_s} s\n{self.log_tail()}")
            time.sleep(_POLL_S)
        self.ready_in_s = time.monotonic() - self._began

    def stop(self, *, within_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL after the deadline. Does nothing if it does not run."""
        if self._process is not None and self.is_alive:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # a paused process handles no SIGTERM
            try:
                self._process.wait(within_s)
            except subprocess.TimeoutExpired:
                pass  # killed below
        self.kill9()

    def kill9(self) -> None:
        """SIGKILL. Does nothing if it does not run."""
        if self._guard is not None:  # first, so that it can never hit a reused pid
            self._guard.kill()
            self._guard.wait()
            if self._guard.stdin is not None:
                self._guard.stdin.close()
            self._guard = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: it keeps its sockets but does not answer. Returns once it has stopped."""
        self._running().send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def log_tail(self, bytes_max: int = 4000) -> str:
        if not self.log_path.exists():
            return "(no log)"
        return self.log_path.read_bytes()[-bytes_max:].decode(errors="replace")

    def _answers(self) -> bool:
        try:
            return self._probe()
        except OSError:
            return False

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None and self.is_alive, f"{self.name} does not run"
        return self._process


class Cluster:
    """The nodes that serve one data set; `with` starts and stops them all."""

    def __init__(
        self,
        scheme: str,
        nodes: Sequence[Node],
        *,
        leads: Callable[[Node], bool],
        beside: Sequence[Node] = (),
    ) -> None:
        self.scheme = scheme
        self.nodes = list(nodes)
        self.beside = list(beside)  # run with them, but no client talks to these
        self._leads = leads

    @property
    def hosts(self) -> str:
        return ",".join(node.address for node in self.nodes)

    @property
    def url(self) -> str:
        """The metadata URL, without a path."""
        return f"{self.scheme}://{self.hosts}"

    def start(self) -> Self:
        try:
            for group in (self.nodes, self.beside):  # nodes first: a coordinator without servers backs off
                for node in group:
                    node.launch()
                for node in group:
                    node.wait_ready()
        except BaseException:
            self.kill9()
            raise
        return self

    def stop(self) -> None:
        for node in (*self.beside, *self.nodes):
            node.stop()

    def kill9(self) -> None:
        for node in (*self.beside, *self.nodes):
            node.kill9()

    def leader(self, *, within_s: float = 30.0) -> Node:
        """The node that leads now; waits for a running election."""
        deadline = time.monotonic() + within_s
        while True:
            for node in self.nodes:
                if node.is_alive and self._says_leader(node):
                    return node
            if time.monotonic() > deadline:
                raise ServerFailed(f"no {self.scheme} leader within {within_s} s")
            time.sleep(_POLL_S)

    def _says_leader(self, node: Node) -> bool:
        try:
            return self._leads(node)
        except OSError:
            return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
