"""`make soak`, part two: mutated frames over TCP to a real broker, beside a well-behaved client that must not notice.

Each frame is followed by a PING. The broker has two valid answers: PONG (it accepted the frame) or a closed connection.
Silence is a fault. A frame with a wrong length field leaves the stream out of step; then the test closes its side and
expects the broker to close too. The seed is printed; the same seed sends the same frames.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pulsar

from tests.support.fuzz.frames import mutated_frames
from tests.support.processes.broker_process import HOST, BrokerProcess

ANSWER_S_MAX = 10.0
GROWTH_BYTES_MAX = 24 << 20
CONNECT, CONNECTED, PING, PONG = 2, 3, 18, 19


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    frames: int
    survived: int  # frames after which the same connection continued
    closed: int  # frames that ended their connection
    seconds: float
    rss_before: int
    rss_after: int
    open_files_after: int
    good_messages: int
    good_latency_s_max: float
    good_fault: str | None


class Silent(AssertionError):
    """The broker neither answered nor closed."""


def simple_frame(kind: int, body: bytes = b"") -> bytes:
    """A command without payload whose only submessage is `body`, at the field Pulsar gives to `kind`."""
    command = bytes((0x08, kind)) + _tag(kind) + bytes((len(body),)) + body
    return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


def _tag(field: int) -> bytes:
    wire = field << 3 | 2
    return bytes((wire,)) if wire < 0x80 else bytes((wire & 0x7F | 0x80, wire >> 7))


_CONNECT_BODY = b"\x0a\x04fuzz" + b"\x20\x15"  # client_version = 1: "fuzz", protocol_version = 4: 21
HELLO = simple_frame(CONNECT, _CONNECT_BODY)
PING_FRAME = simple_frame(PING)


class Peer:
    """One raw connection that has sent CONNECT."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=ANSWER_S_MAX)
        self._buffer = b""
        self._socket.sendall(HELLO)
        if not self._wait_for(CONNECTED):
            raise Silent("the broker refused a good CONNECT")

    def survives(self, frame: bytes) -> bool:
        """Send it; True if the broker continues with this connection, False if it closed it."""
        in_step = len(frame) >= 4 and int.from_bytes(frame[:4], "big") == len(frame) - 4
        try:
            self._socket.sendall(frame + PING_FRAME if in_step else frame)
            if not in_step:
                self._socket.shutdown(socket.SHUT_WR)
            return self._wait_for(PONG) and in_step
        except OSError:  # ConnectionError, or ENOTCONN when the broker was faster
            return False

    def close(self) -> None:
        self._socket.close()

    def _wait_for(self, kind: int) -> bool:
        """Read commands until one of this kind; False at the end of the stream."""
        while True:
            while (command := self._next_command()) is not None:
                if command[:2] == bytes((0x08, kind)):
                    return True
            try:
                received = self._socket.recv(1 << 16)
            except TimeoutError:
                raise Silent(f"no answer and no close within {ANSWER_S_MAX} s") from None
            except ConnectionError:
                return False
            if not received:
                return False
            self._buffer += received

    def _next_command(self) -> bytes | None:
        size = int.from_bytes(self._buffer[:4], "big") + 4
        if len(self._buffer) < max(size, 8):
            return None
        frame, self._buffer = self._buffer[:size], self._buffer[size:]
        return frame[8 : 8 + int.from_bytes(frame[4:8], "big")]


class GoodClient(threading.Thread):
    """The stock client on its own topic: sends, receives and compares all the time."""

    def __init__(self, service_url: str, topic: str = "persistent://public/default/good-neighbour") -> None:
        super().__init__(daemon=True)
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(service_url, logger=quiet, operation_timeout_seconds=10)
        self._consumer = self._client.subscribe(topic, "good")
        self._producer = self._client.create_producer(topic, send_timeout_millis=10_000)
        self._stopping = threading.Event()
        self.messages = 0
        self.latency_s_max = 0.0
        self.fault: str | None = None

    def run(self) -> None:
        try:
            while not self._stopping.wait(0.005):
                sent = f"good-{self.messages}".encode()
                began = time.monotonic()
                self._producer.send(sent)
                message = self._consumer.receive(timeout_millis=10_000)
                self.latency_s_max = max(self.latency_s_max, time.monotonic() - began)
                if message.data() != sent or message.redelivery_count():
                    self.fault = f"sent {sent!r}, got {message.data()!r} ({message.redelivery_count()} redeliveries)"
                    return
                self._consumer.acknowledge(message)
                self.messages += 1
        except pulsar.PulsarException as error:
            self.fault = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        self._stopping.set()
        self.join(30.0)
        self._client.close()


def fuzz(broker: BrokerProcess, frames: int, seed: int, tell: Callable[[str], None]) -> Outcome:
    good = GoodClient(broker.service_url)
    good.start()
    began = time.monotonic()
    warm_up = max(frames // 5, 1)  # buffers, caches and allocator arenas reach their size before the comparison starts
    survived = rss_before = done = 0
    try:
        for done, lived in enumerate(_answers(broker, mutated_frames(seed, frames)), 1):
            survived += lived
            if done == warm_up:
                rss_before = broker.rss_bytes()
            if done % 10_000 == 0:
                tell(f"{done:,} frames, {broker.rss_bytes() >> 20} MB resident, good client at {good.messages:,}")
            assert good.fault is None, good.fault
    finally:
        good.stop()
    return Outcome(
        seed=seed,
        frames=done,
        survived=survived,
        closed=done - survived,
        seconds=time.monotonic() - began,
        rss_before=rss_before,
        rss_after=broker.rss_bytes(),
        open_files_after=broker.open_files(),
        good_messages=good.messages,
        good_latency_s_max=good.latency_s_max,
        good_fault=good.fault,
    )


def faults(outcome: Outcome, broker: BrokerProcess) -> list[str]:
    found = []
    if not broker.is_alive:
        found.append("the broker died")
    if outcome.good_fault is not None:
        found.append(f"the good client was disturbed: {outcome.good_fault}")
    if outcome.good_messages == 0:
        found.append("the good client never got a message through")
    if complaints := broker.log_complaints():
        found.append(f"the broker logged {len(complaints)} errors, first: {complaints[0]}")
    grown = outcome.rss_after - outcome.rss_before
    if grown > GROWTH_BYTES_MAX:
        found.append(f"resident memory grew by {grown >> 20} MB")
    return found


def _answers(broker: BrokerProcess, frames: Iterable[bytes]) -> Iterable[bool]:
    peer = Peer(broker.port)
    for number, frame in enumerate(frames):
        try:
            lived = peer.survives(frame)
        except Silent as silence:
            raise Silent(f"frame {number} ({frame[:80].hex()}…, {len(frame)} bytes): {silence}") from None
        yield lived
        if not lived:
            peer.close()
            peer = Peer(broker.port)
    peer.close()


def main() -> int:
    options = argparse.ArgumentParser(description="Fuzz a real broker with mutated frames.")
    options.add_argument("--frames", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=None)
    arguments = options.parse_args()
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    print(f"fuzz: {arguments.frames:,} frames, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="anabranch-fuzz-"))
    with BrokerProcess(folder / "data") as broker:
        outcome = fuzz(broker, arguments.frames, seed, lambda text: print(f"  {text}", flush=True))
        wrong = faults(outcome, broker)
        if not wrong:
            broker.stop()
    print(
        f"  {outcome.frames:,} frames in {outcome.seconds:.0f} s: {outcome.survived:,} lived with, {outcome.closed:,} "
        f"closed their connection; resident {outcome.rss_before >> 20} → {outcome.rss_after >> 20} MB; good client "
        f"{outcome.good_messages:,} messages, slowest {outcome.good_latency_s_max * 1000:.0f} ms"
    )
    if wrong:
        print(f"FAILED, seed {seed}, log kept in {folder}:", *wrong, sep="\n  ")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print("All held.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
