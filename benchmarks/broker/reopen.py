"""Opening after `kill -9` with much data against little: from process start to the first receipt on the old topic.

Expected before measuring: recovery reads the commit log (at most 64 MiB) and the tail of each open ledger, never the
data; Python's own start is 0.3 s of it. 1.0-1.1.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.broker.catch_up import fill
from benchmarks.support.measure import Outcome, Scene, Series, at_most, side_by_side
from benchmarks.support.raw_wire import Surprise, Wire, one_batch, one_message, publish, send_frames
from tests.support.processes.broker_process import BrokerProcess

TOPIC = "bench-reopen"


class Killed:
    """A broker with so much data, killed in the middle of publishing; `open_seconds` brings it back and kills it
    again."""

    def __init__(self, directory: Path, data_bytes: int, tail_entries: int) -> None:
        self._payload = one_batch(100, 100)
        self._tail = send_frames(self._payload, tail_entries, 100)
        self._first = send_frames(one_message(100), 1)
        self.broker = BrokerProcess(directory).start()
        fill(self.broker.port, TOPIC, self._payload, data_bytes // len(self._payload), 100)
        self._kill()

    def _kill(self) -> None:
        """SIGKILL with a tail in the commit log and entries on their way."""
        with Wire(self.broker.port) as wire:
            wire.produce(TOPIC)
            left = len(self._tail) * 2 // 3

            def count(receipts: int) -> None:
                nonlocal left
                left -= receipts
                if left <= 0:
                    self.broker.kill9()

            try:
                publish(wire, self._tail, window=20, on_receipts=count)
            except (Surprise, OSError):
                pass  # the broker is dead, as planned
        assert not self.broker.is_alive, "the broker outlived its kill"

    def open_seconds(self) -> float:
        start = time.perf_counter()
        self.broker.start()
        with Wire(self.broker.port) as wire:
            wire.produce(TOPIC)
            publish(wire, self._first, window=1)
        seconds = time.perf_counter() - start
        self._kill()
        return seconds


def run(scene: Scene) -> list[Outcome]:
    rounds = scene.size(5, 1)
    much, little = scene.size(4 << 30, 8 << 20), scene.size(1 << 28, 1 << 20)
    tail = scene.size(3000, 100)
    directory = scene.place("reopen")
    brokers: list[Killed] = []
    try:
        for name, size in (("much", much), ("little", little)):
            brokers.append(Killed(directory / name, size, tail))
        big, small = brokers
        many, few = side_by_side(rounds, big.open_seconds, small.open_seconds)
    finally:
        for one in brokers:
            one.broker.close()
    return [
        Outcome(
            "reopen",
            "open after kill -9, 4 GB against 0.25 GB",
            Series("much data", "s", many),
            Series("little data", "s", few),
            at_most(1.5),
            {"bytes": [much, little], "to": "first receipt on the old topic, from process start"},
        )
    ]
