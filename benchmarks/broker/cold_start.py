"""From nothing to the first acknowledged message, and the memory the broker has then.

As with an installed package the bytecode is there: it is written by a first start that does not count. (From a checkout
that may not write it, every start compiles the whole package, which takes as long as the rest.)

Expected before measuring: Python and protobuf 0.15 s, SQLite and files 0.1 s, one topic (metadata commits, first
ledger, first log file) 0.05 s; 40-50 MB.
"""

from __future__ import annotations

import time

from benchmarks.support.measure import Outcome, Scene, Series, at_most
from benchmarks.support.raw_wire import Wire, one_message, publish, send_frames
from tests.support.processes.broker_process import BrokerProcess


def run(scene: Scene) -> list[Outcome]:
    rounds = scene.size(7, 1)
    directory = scene.place("cold-start")
    frames = send_frames(one_message(100), 1)
    seconds: list[float] = []
    memory: list[float] = []
    environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}
    for number in range(rounds + 1):
        broker = BrokerProcess(directory / f"data-{number}", environment=environment)
        start = time.perf_counter()
        with broker, Wire(broker.port) as wire:
            wire.produce("first")
            publish(wire, frames, window=1)
            seconds.append(time.perf_counter() - start)
            memory.append(broker.rss_bytes() / 1e6)
    del seconds[0], memory[0]
    return [
        Outcome(
            "cold-start", "start → first acknowledged message", Series("start", "s", tuple(seconds)), None, at_most(1)
        ),
        Outcome("cold-memory", "resident memory then", Series("memory", "MB", tuple(memory)), None, at_most(80)),
    ]
