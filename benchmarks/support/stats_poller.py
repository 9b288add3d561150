"""Requests the stats of a topic at a fixed rate from a separate process (open loop) and reports latencies.

python -m benchmarks.support.stats_poller URL PATH RATE

Prints one JSON line with its latencies (ms) when its input ends.
"""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from benchmarks.support.floors import ROOT

PATIENCE_S = 30.0


def poll(url: str, path: str, rate: int) -> list[float]:
    """Latency of every answer, counted from when it was due."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    latencies: list[float] = []
    print("ready", flush=True)
    start = time.perf_counter()
    while True:
        due = start + len(latencies) / rate
        ended, _, _ = select.select([sys.stdin], [], [], max(0.0, due - time.perf_counter()))
        if ended:
            return latencies
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {body[:200]!r}")
        latencies.append((time.perf_counter() - due) * 1000)


class Poller:
    """`with Poller(url, path, 50) as poller: …`; afterwards `poller.latencies` in ms."""

    def __init__(self, url: str, path: str, rate: int) -> None:
        command = [sys.executable, "-m", "benchmarks.support.stats_poller", url, path, str(rate)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.latencies: list[float] = []

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError("the poller did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        text, _ = self._process.communicate("\n", timeout=PATIENCE_S)
        if kind is None:
            self.latencies = json.loads(text)


if __name__ == "__main__":
    print(json.dumps(poll(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
