"""One message at a time: a blocking send against a bare loopback round trip with an `fdatasync` in between.

Expected before measuring: the floor is 30 µs of loopback plus 200-400 µs of sync. The broker adds two thread
hand-overs (loop → log thread → loop, 50 µs each with two cores) and 30 µs of Python; the stock client two more
threads and its own hand-overs. 1.5 × for a raw client, 2 × for the stock one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from anabranch.protocol.commands import BaseCommand
from benchmarks.support.floors import ANSWER_BYTES, Peer
from benchmarks.support.measure import Outcome, Scene, Series, at_most, percentile
from benchmarks.support.raw_wire import Wire, one_message, send_frames
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_client import new_client


def p50s_us(count: int, *sides: Callable[[], object]) -> list[float]:
    """Median time of each side; they take turns send by send, so that a slow moment of the disk hits all of them."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(count):
        for side, seen in zip(sides, times, strict=True):
            start = time.perf_counter()
            side()
            seen.append((time.perf_counter() - start) * 1e6)
    return [percentile(seen, 0.5) for seen in times]


def run(scene: Scene) -> list[Outcome]:
    rounds, count = scene.size(9, 1), scene.size(400, 20)
    directory = scene.place("blocking-send")
    frames = send_frames(one_message(100), (rounds + 1) * count)
    size = len(frames.data) // len(frames)
    with BrokerProcess(directory / "data") as broker, Peer("synced", str(directory / "floor")) as peer:
        client = new_client(broker.service_url)
        producer = client.create_producer("bench-blocking")
        with Wire(broker.port) as wire, peer.connect() as bare:
            wire.produce("bench-blocking-raw")
            bare.sendall(size.to_bytes(2, "big"))
            sent = 0

            def raw() -> None:
                nonlocal sent
                begin = frames.ends[sent - 1] if sent else 0
                wire.sock.sendall(frames.data[begin : frames.ends[sent]])
                sent += 1
                wire.answer(BaseCommand.SEND_RECEIPT)

            request, answer = bytes(size), bytearray(ANSWER_BYTES)

            def floor() -> None:
                bare.sendall(request)
                left = ANSWER_BYTES
                while left:
                    left -= bare.recv_into(answer, left)

            def stock() -> None:
                producer.send(b"x" * 100)

            p50s_us(count // 2, stock, raw, floor)  # warm
            found = [p50s_us(count, stock, raw, floor) for _ in range(rounds)]
        stocks, raws, floors = (tuple(column) for column in zip(*found, strict=True))
        client.close()
    against = Series("round trip + fdatasync", "µs", floors)
    notes = {"bytes": size, "sends_per_round": count}
    return [
        Outcome(
            "blocking-send",
            "blocking send p50, stock client",
            Series("stock", "µs", stocks),
            against,
            at_most(3),
            notes,
        ),
        Outcome("blocking-send-raw", "the same, raw client", Series("raw", "µs", raws), against, at_most(3), notes),
    ]
