"""Durable publishing against its floors: the bare disk for large entries, the bare transport for small ones.

Expected before measuring. 100 × 100 B (10.9 KB entries, 256 in flight): both are bound by the disk's sync and the
copies around it; the broker copies each entry twice more (socket, page cache) and shares the cores with its
generator, so 0.5-0.8 of the bare loop. 1 × 100 B (4000 in flight): the transport alone takes about 5 µs per entry, a
durable entry 10 µs: 0.5.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.support.floors import Peer
from benchmarks.support.measure import Outcome, Scene, Series, at_least, process_cpu_seconds, side_by_side
from benchmarks.support.raw_wire import Frames, Wire, one_batch, one_message, publish, send_frames
from tests.support.processes.broker_process import BrokerProcess

IOVECS_MAX = 1024


def disk_floor(path: Path, payload: bytes, groups: list[int]) -> float:
    """Entries per second of `writev` + `fdatasync` with exactly these groups."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        start = time.perf_counter()
        for group in groups:
            for begin in range(0, group, IOVECS_MAX):
                os.writev(fd, [payload] * min(group - begin, IOVECS_MAX))
            os.fdatasync(fd)
        return sum(groups) / (time.perf_counter() - start)
    finally:
        os.close(fd)
        path.unlink()


class Load:
    """The same frames to a new topic each round; remembers what the rounds cost the broker."""

    def __init__(self, port: int, pid: int | None, frames: Frames, window: int) -> None:
        self._port, self._pid = port, pid
        self._frames, self._window = frames, window
        self._rounds = 0
        self.groups: list[int] = []
        self.cpu_us: list[float] = []

    def rate(self) -> float:
        """Entries per second."""
        self._rounds += 1
        self.groups = []
        with Wire(self._port) as wire:
            wire.produce(f"bench-publish-{len(self._frames)}-{self._rounds}")
            before = process_cpu_seconds(self._pid) if self._pid else 0.0
            seconds = publish(wire, self._frames, self._window, self._saw)
            if self._pid:
                self.cpu_us.append((process_cpu_seconds(self._pid) - before) / len(self._frames) * 1e6)
        return len(self._frames) / seconds

    def _saw(self, receipts: int) -> None:
        if receipts:
            self.groups.append(receipts)


def large(scene: Scene) -> list[Outcome]:
    rounds, count, window = scene.size(9, 1), scene.size(15_000, 500), 256
    payload = one_batch(100, 100)
    frames = send_frames(payload, count, messages=100)
    directory = scene.place("publish-large")
    with BrokerProcess(directory / "data") as broker:
        load = Load(broker.port, broker.pid, frames, window)
        load.rate()  # warm: page cache, log file, code
        broker_rates, floor_rates, sizes = [], [], []
        for _ in range(rounds):
            broker_rates.append(load.rate())
            sizes.append(len(frames) / len(load.groups))
            floor_rates.append(disk_floor(directory / "floor", payload, load.groups))
    megabytes = len(payload) / 1e6
    return [
        Outcome(
            "publish-large",
            "durable publish, 100 × 100 B entries",
            Series("broker", "MB/s", tuple(rate * megabytes for rate in broker_rates)),
            Series("writev + fdatasync, same groups", "MB/s", tuple(rate * megabytes for rate in floor_rates)),
            at_least(0.5),
            {
                "entry_bytes": len(payload),
                "entries": count,
                "window": window,
                "entries_per_group": sizes,
                "broker_cpu_us_per_entry": load.cpu_us[1:],
            },
        )
    ]


def small(scene: Scene) -> list[Outcome]:
    # So many in flight that the latency of the disk, which `blocking_send` measures, does not set the pace.
    rounds, count, window = scene.size(9, 1), scene.size(150_000, 3_000), 4000
    payload = one_message(100)
    frames = send_frames(payload, count)
    directory = scene.place("publish-small")
    with (
        BrokerProcess(directory / "data") as broker,
        Peer("connection") as peer,
        Peer("runs") as runs,
        Peer("receipts") as socket_only,
    ):
        load = Load(broker.port, broker.pid, frames, window)
        others = [Load(one.port, None, frames, window) for one in (peer, runs, socket_only)]
        for one in (load, *others):
            one.rate()
        rates, floors, in_runs, bares = side_by_side(rounds, load.rate, *(one.rate for one in others))
    measured = Series("broker", "entries/s", rates)
    return [
        Outcome(
            "publish-small",
            "durable publish, 1 × 100 B entries, pipelined",
            measured,
            Series("the same connections answering receipts", "entries/s", floors),
            at_least(0.5),
            {
                "entry_bytes": len(payload),
                "entries": count,
                "window": window,
                "entries_per_group": count / len(load.groups),
                "bare_socket_answering_receipts": bares,
                "broker_cpu_us_per_entry": load.cpu_us[1:],
            },
        ),
        Outcome(
            "publish-small-runs",
            "– the same, against SENDs taken in runs",
            measured,
            Series("connections that take runs in C", "entries/s", in_runs),
            None,
        ),
    ]
