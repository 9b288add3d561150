"""Publish latency of many topics against one, at the same total rate, open loop.

Expected before measuring: one commit log for all topics, so a group costs one sync either way; 1,000 topics add a
batch, a receipt write and a pump per topic and group, some 20 µs per message at 10,000 messages/s = 20 % of a core
more. p99 within 2 ×. Latency counts from the moment a message was due, not from when the generator came around to
sending it.
"""

from __future__ import annotations

import select
import time
from typing import Any

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame_with_payload
from benchmarks.support.measure import Outcome, Scene, Series, at_most, percentile
from benchmarks.support.raw_wire import PATIENCE_S, Surprise, Wire, one_message
from tests.support.processes.broker_process import BrokerProcess

RATE = 10_000
TICK_S = 0.001
CONNECTIONS = 4


class OpenLoop:
    """Message n goes to producer n mod P with sequence id n div P, when its time has come."""

    def __init__(self, port: int, topics: list[str]) -> None:
        self._wires = [Wire(port) for _ in range(CONNECTIONS)]
        count = max(len(topics), CONNECTIONS)
        self._producers = count
        self._next = 0
        for index, wire in enumerate(self._wires):
            wire.produce_all({number: topics[number % len(topics)] for number in range(index, count, CONNECTIONS)})

    def close(self) -> None:
        for wire in self._wires:
            wire.close()

    def run(self, seconds: float, rate: int = RATE) -> list[float]:
        """Latency of every message in ms."""
        per_tick = int(rate * TICK_S)
        first, total = self._next, int(seconds * rate)
        self._next += total
        plan = self._plan(first, total, per_tick)
        wires = {wire.sock: wire for wire in self._wires}
        latencies: list[float] = []
        start = time.perf_counter() + 0.01
        tick, ticks = 0, len(plan)
        while len(latencies) < total:
            now = time.perf_counter()
            while tick < ticks and start + tick * TICK_S <= now:
                for wire, data in plan[tick]:
                    wire.sock.sendall(data)
                tick += 1
            wait = start + tick * TICK_S - time.perf_counter() if tick < ticks else PATIENCE_S
            readable, _, _ = select.select(wires, (), (), max(wait, 0.0))
            if not readable and tick == ticks:
                raise Surprise(f"{total - len(latencies)} receipts are missing")
            for sock in readable:
                answers = wires[sock].receive()
                now = time.perf_counter()
                while answers:
                    number = self._number(*answers.popleft()) - first
                    latencies.append((now - start - number // per_tick * TICK_S) * 1000)
        return latencies

    def _number(self, kind: int, body: Any) -> int:
        if kind != BaseCommand.SEND_RECEIPT:
            raise Surprise(f"{BaseCommand.Type.Name(kind)}: {str(body)[:200]}")
        return int(body.sequence_id) * self._producers + int(body.producer_id)

    def _plan(self, first: int, total: int, per_tick: int) -> list[list[tuple[Wire, bytes]]]:
        """What each connection sends in each tick."""
        payload = one_message(100)
        plan = []
        for begin in range(first, first + total, per_tick):
            parts: dict[int, list[bytes]] = {}
            for number in range(begin, begin + per_tick):
                sequence, producer = divmod(number, self._producers)
                send = pb.CommandSend(producer_id=producer, sequence_id=sequence, num_messages=1)
                data = frame_with_payload(BaseCommand(type=BaseCommand.SEND, send=send), payload)
                parts.setdefault(producer % CONNECTIONS, []).append(data)
            plan.append([(self._wires[index], b"".join(frames)) for index, frames in parts.items()])
        return plan


def run(scene: Scene) -> list[Outcome]:
    rounds, seconds, topics = scene.size(9, 1), 0.3 if scene.quick else 2.0, scene.size(1000, 50)
    rate = scene.size(RATE, 2000)
    found: dict[str, list[list[float]]] = {"many": [], "one": []}
    with BrokerProcess(scene.place("many-topics") / "data") as broker:
        loops = {
            "one": OpenLoop(broker.port, ["bench-single"]),
            "many": OpenLoop(broker.port, [f"bench-many-{number}" for number in range(topics)]),
        }
        try:
            for loop in loops.values():
                loop.run(seconds, rate)  # warm: first ledgers, first log file
            for number in range(rounds):
                for name in sorted(loops, reverse=number % 2 == 1):
                    found[name].append(loops[name].run(seconds, rate))
        finally:
            for loop in loops.values():
                loop.close()

    def of(name: str, share: float) -> tuple[float, ...]:
        return tuple(percentile(latencies, share) for latencies in found[name])

    return [
        Outcome(
            "many-topics",
            f"{topics} topics against 1, {rate} unbatched msg/s, p99",
            Series(f"{topics} topics", "ms", of("many", 0.99)),
            Series("one topic", "ms", of("one", 0.99)),
            at_most(3),
            {
                "connections": CONNECTIONS,
                "p50_ms": {name: of(name, 0.5) for name in found},
                "p999_ms": {name: of(name, 0.999) for name in found},
            },
        )
    ]
