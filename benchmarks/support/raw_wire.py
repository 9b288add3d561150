"""A raw client for load: frames are built before the clock starts, what comes back is counted by its sizes only.

The point is that the generator costs little, so that the broker is what is measured. It knows the protocol through
`anabranch.protocol`; it is no client for anything else (no retries, no reconnect, any surprise is an error).
"""

from __future__ import annotations

import select
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any

from anabranch.protocol import entry, replies
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame, frame_with_payload, read_command
from anabranch.protocol.frames import FrameDecoder

HOST = "127.0.0.1"
PATIENCE_S = 60.0
PERMITS_MAX = 2**31 - 1
_SIZE = Struct(">I").unpack_from
_HEAD_BYTES = 10  # total size, command size, tag of the type, type
_TYPE_TAG = 8


class Surprise(RuntimeError):
    """The broker said something that no healthy run contains."""


@dataclass(frozen=True, slots=True)
class Frames:
    """SEND frames one behind the other; frame i ends at `ends[i]`."""

    data: bytes
    ends: array[int]
    messages: int  # per entry
    entry_bytes: int

    def __len__(self) -> int:
        return len(self.ends)


def one_message(size: int = 100) -> bytes:
    """An unbatched entry."""
    return entry.build_entry(b"x" * size, publish_time=time.time_ns() // 1_000_000)


def one_batch(messages: int = 100, size: int = 100) -> bytes:
    return entry.build_batch([b"x" * size] * messages, publish_time=time.time_ns() // 1_000_000)


def send_frames(payload: bytes, count: int, messages: int = 1, producer_id: int = 1) -> Frames:
    """`count` SENDs of the same entry with ascending sequence ids."""
    parts, ends, end = [], array("Q"), 0
    for number in range(count):
        send = pb.CommandSend(producer_id=producer_id, sequence_id=number * messages, num_messages=messages)
        if messages > 1:
            send.highest_sequence_id = number * messages + messages - 1
        part = frame_with_payload(BaseCommand(type=BaseCommand.SEND, send=send), payload)
        parts.append(part)
        end += len(part)
        ends.append(end)
    return Frames(b"".join(parts), ends, messages, len(payload))


class Wire:
    """One connection. Requests block; `publish` and `Inlet` do the heavy traffic."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection((HOST, port), timeout=PATIENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder(6 << 20)
        self._answers: deque[tuple[int, Any]] = deque()
        self._requests = 0
        connect = pb.CommandConnect(client_version="benchmark", protocol_version=19, auth_method_name="none")
        self.sock.sendall(frame(BaseCommand(type=BaseCommand.CONNECT, connect=connect)))
        self.answer(BaseCommand.CONNECTED)

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_request(self) -> int:
        self._requests += 1
        return self._requests

    def produce(self, topic: str, producer_id: int = 1) -> None:
        body = pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=self.next_request())
        self.sock.sendall(frame(BaseCommand(type=BaseCommand.PRODUCER, producer=body)))
        self.answer(BaseCommand.PRODUCER_SUCCESS)

    def produce_all(self, topics: Mapping[int, str]) -> None:
        """Many producers at once, by producer id."""
        bodies = [
            pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=self.next_request())
            for producer_id, topic in topics.items()
        ]
        self.sock.sendall(b"".join(frame(BaseCommand(type=BaseCommand.PRODUCER, producer=body)) for body in bodies))
        for _ in bodies:
            self.answer(BaseCommand.PRODUCER_SUCCESS)

    def subscribe(self, topic: str, subscription: str, *, durable: bool = True) -> None:
        """An exclusive consumer (id 1) from the earliest entry on."""
        body = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=self.next_request(),
            durable=durable,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        if not durable:
            body.start_message_id.ledgerId = body.start_message_id.entryId = 2**64 - 1
        self.sock.sendall(frame(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=body)))
        self.answer(BaseCommand.SUCCESS)

    def flow(self, permits: int = PERMITS_MAX) -> None:
        body = pb.CommandFlow(consumer_id=1, messagePermits=permits)
        self.sock.sendall(frame(BaseCommand(type=BaseCommand.FLOW, flow=body)))

    def answer(self, kind: int) -> Any:
        """The next command, which has to be of this kind."""
        while not self._answers:
            self.receive()
        found, body = self._answers.popleft()
        if found != kind:
            raise Surprise(f"{BaseCommand.Type.Name(found)}: {str(body)[:200]}")
        return body

    def receive(self) -> deque[tuple[int, Any]]:
        """One receive; the commands that wait to be looked at. Pings are answered here."""
        count = self.sock.recv_into(self._decoder.buffer())
        if not count:
            raise Surprise("connection closed by the broker")
        for one in self._decoder.received(count):
            kind, body = read_command(one.command)
            if kind == BaseCommand.PING:
                self.sock.send(replies.PONG_FRAME)
            else:
                self._answers.append((kind, body))
        return self._answers


class Inlet:
    """Counts the frames of one kind that arrive, hopping from size to size. Answers pings; anything else is a
    surprise."""

    def __init__(self, sock: socket.socket, kind: int, buffer_bytes: int = 1 << 20) -> None:
        self._sock = sock
        self._kind = int(kind)
        self._data = bytearray(buffer_bytes)
        self._view = memoryview(self._data)
        self._kept = 0  # bytes of an incomplete head, at the start of the buffer
        self._skip = 0  # bytes of the last frame that are still to come
        self.bytes = 0

    def receive(self) -> int:
        """One receive; how many frames came to their end."""
        count = self._sock.recv_into(self._view[self._kept :])
        if not count:
            raise Surprise("connection closed by the broker")
        self.bytes += count
        end, at, done = self._kept + count, self._skip, 0
        if at > end:
            self._skip = at - end
            return 0
        if at:
            done = 1
        data, kind = self._data, self._kind
        self._skip = 0
        while end - at >= _HEAD_BYTES:
            if data[at + 9] != kind or data[at + 8] != _TYPE_TAG:
                self._other(data[at + 9])
                done -= 1
            at += 4 + _SIZE(data, at)[0]
            if at > end:
                self._skip = at - end
                self._kept = 0
                return done
            done += 1
        self._kept = end - at
        data[: self._kept] = data[at:end]
        return done

    def _other(self, kind: int) -> None:
        if kind != BaseCommand.PING:
            raise Surprise(f"unexpected command {kind}")
        self._sock.send(replies.PONG_FRAME)


def _nothing(_: int) -> None:
    """Default for `on_receipts`."""


def publish(wire: Wire, frames: Frames, window: int, on_receipts: Callable[[int], None] = _nothing) -> float:
    """Send all frames with at most `window` of them unanswered; seconds from the first byte to the last receipt.

    `on_receipts` is called with the number of receipts in one read. The broker answers a group with one write, so with
    one connection this is the size of its commit groups. Two groups may arrive in one read; this favours the floor, not
    the broker.
    """
    sock, total, ends = wire.sock, len(frames), frames.ends
    data = memoryview(frames.data)
    inlet = Inlet(sock, BaseCommand.SEND_RECEIPT, 256 << 10)
    poller = select.poll()
    fd = sock.fileno()
    poller.register(fd, select.POLLIN)
    done = sent = 0
    sock.setblocking(False)
    start = time.perf_counter()
    try:
        while done < total:
            upto = ends[min(done + window, total) - 1]
            if sent < upto:
                try:
                    sent += sock.send(data[sent:upto])
                except BlockingIOError:
                    pass  # the poll below waits until the socket is writable
            poller.modify(fd, select.POLLIN | select.POLLOUT if sent < upto else select.POLLIN)
            events = poller.poll(PATIENCE_S * 1000)
            if not events:
                raise Surprise(f"no receipt for {PATIENCE_S:g} s")
            if events[0][1] & ~select.POLLOUT:
                arrived = inlet.receive()
                done += arrived
                on_receipts(arrived)
        return time.perf_counter() - start
    finally:
        sock.setblocking(True)
        sock.settimeout(PATIENCE_S)


def receive_entries(wire: Wire, entries: int) -> int:
    """Receive so many MESSAGE frames and nothing else; the bytes they had."""
    inlet = Inlet(wire.sock, BaseCommand.MESSAGE)
    while entries > 0:
        entries -= inlet.receive()
    return inlet.bytes
