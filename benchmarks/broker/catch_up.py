"""Catch-up reading of a long backlog against `preadv` + `sendmsg` of the same bytes to a peer that only receives.

Expected before measuring: both copy file → process → socket → receiver; the broker adds a checksum (0.5 µs per 11 KB)
and some 10 µs of Python per entry, against 4-5 µs for the copies of a bare loop at 2.3 GB/s: 0.5 at best, unless
reading ahead overlaps the two.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from anabranch.protocol.commands import BaseCommand
from benchmarks.support.floors import Peer
from benchmarks.support.measure import Outcome, Scene, Series, at_least, process_cpu_seconds, side_by_side
from benchmarks.support.raw_wire import Inlet, Wire, one_batch, publish, receive_entries, send_frames
from tests.support.processes.broker_process import BrokerProcess

TOPIC = "bench-backlog"


def fill(port: int, topic: str, payload: bytes, entries: int, messages: int) -> None:
    """Publish a backlog; a subscription keeps it."""
    with Wire(port) as keeper:
        keeper.subscribe(topic, "keeper")
    part = send_frames(payload, min(entries, 20_000), messages)
    while entries > 0:
        if entries < len(part):
            part = send_frames(payload, entries, messages)
        with Wire(port) as wire:
            wire.produce(topic)
            publish(wire, part, window=256)
        entries -= len(part)


def write_floor(path: Path, payload: bytes, entries: int) -> None:
    with path.open("wb", buffering=1 << 20) as file:
        for _ in range(entries):
            file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def run(scene: Scene) -> list[Outcome]:
    rounds, total_bytes = scene.size(7, 1), scene.size(1 << 30, 4 << 20)
    payload = one_batch(100, 100)
    entries = total_bytes // len(payload)
    directory = scene.place("catchup")
    cpu: list[float] = []
    with BrokerProcess(directory / "data") as broker:
        fill(broker.port, TOPIC, payload, entries, 100)
        write_floor(directory / "floor", payload, entries)
        os.sync()

        def broker_rate() -> float:
            with Wire(broker.port) as wire:
                wire.subscribe(TOPIC, f"reader-{time.monotonic_ns()}", durable=False)
                before = process_cpu_seconds(broker.pid)
                start = time.perf_counter()
                wire.flow()
                receive_entries(wire, entries)
                seconds = time.perf_counter() - start
                cpu.append((process_cpu_seconds(broker.pid) - before) / entries * 1e6)
            return entries * len(payload) / seconds / 1e6

        with Peer("file", str(directory / "floor"), str(len(payload))) as peer:

            def floor_rate() -> float:
                start = time.perf_counter()
                with peer.connect() as sock:
                    inlet = Inlet(sock, BaseCommand.MESSAGE)
                    left = entries
                    while left > 0:
                        left -= inlet.receive()
                return entries * len(payload) / (time.perf_counter() - start) / 1e6

            broker_rate()
            floor_rate()
            rates, floors = side_by_side(rounds, broker_rate, floor_rate)
    return [
        Outcome(
            "catch-up",
            "catch-up read, 11 KB entries",
            Series("broker", "MB/s", rates),
            Series("preadv + sendmsg", "MB/s", floors),
            at_least(0.5),
            {"bytes": entries * len(payload), "entry_bytes": len(payload), "broker_cpu_us_per_entry": cpu[1:]},
        )
    ]
