"""Memory of a broker with one consumer 2 GB behind, catching up slowly while publishing goes on, against none.

Expected before measuring: a consumer that is behind costs its socket queue (2 MB), one or two blocks of reading (1 MB
each) and nothing per entry of backlog: 10 MB on 90-120 MB. 1.1.
"""

from __future__ import annotations

import time
from pathlib import Path

from anabranch.protocol.commands import BaseCommand
from benchmarks.broker.catch_up import fill
from benchmarks.support.measure import Outcome, Scene, Series, at_most
from benchmarks.support.raw_wire import Frames, Inlet, Wire, one_batch, publish, send_frames
from tests.support.processes.broker_process import BrokerProcess

TOPIC = "bench-behind"
READ_BYTES_PER_STEP = 2 << 20


def resident_mb(broker: BrokerProcess) -> float:
    return broker.rss_bytes() / 1e6


def peak_mb(broker: BrokerProcess) -> float:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the kernel does not tell the peak")


def watch(broker: BrokerProcess, frames: Frames, steps: int, reader: Wire | None) -> list[float]:
    """Publish a little again and again, let the reader take a little, look at the memory."""
    inlet = Inlet(reader.sock, BaseCommand.MESSAGE) if reader is not None else None
    seen = []
    for _ in range(steps):
        with Wire(broker.port) as wire:
            wire.produce(TOPIC)
            publish(wire, frames, window=256)
        if inlet is not None:
            upto = inlet.bytes + READ_BYTES_PER_STEP
            while inlet.bytes < upto:
                inlet.receive()
        else:
            time.sleep(0.002)
        seen.append(resident_mb(broker))
    return seen


def run(scene: Scene) -> list[Outcome]:
    rounds, backlog, steps = scene.size(3, 1), scene.size(2 << 30, 8 << 20), scene.size(100, 2)
    payload = one_batch(100, 100)
    frames = send_frames(payload, 200, 100)
    directory = scene.place("memory")
    behind, none, peaks = [], [], []
    for number in range(rounds):
        with BrokerProcess(directory / f"data-{number}") as broker:
            fill(broker.port, TOPIC, payload, backlog // len(payload), 100)
            none.append(max(watch(broker, frames, steps, None)))
            peak = peak_mb(broker)
            with Wire(broker.port) as reader:
                reader.subscribe(TOPIC, "keeper")
                reader.flow()
                behind.append(max(watch(broker, frames, steps, reader)))
            peaks.append((peak, peak_mb(broker)))
    return [
        Outcome(
            "behind-memory",
            "memory, one consumer 2 GB behind against none",
            Series("behind", "MB", tuple(behind)),
            Series("none", "MB", tuple(none)),
            at_most(1.3),
            {"backlog_bytes": backlog, "peak_mb_without_and_with": peaks},
        )
    ]
