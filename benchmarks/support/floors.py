"""Floors that need a separate process: peers without topics and storage, or without Python in the data path.

    python -m benchmarks.support.floors connection | runs | receipts | synced FILE | file FILE ENTRY_BYTES

Each binds a free loopback port, prints it, and serves until its standard input is closed. `Peer` starts one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from anabranch.broker.services import Address, NameGenerator, Services
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler
from anabranch.broker.wire.server import SCRATCH_BYTES
from anabranch.protocol import entry, replies
from anabranch.protocol.commands import BaseCommand, message_header, read_command, receipt_frame
from anabranch.protocol.frames import Frame, FrameDecoder, TakeRun
from anabranch.protocol.native import NATIVE
from anabranch.runtime.net import Buffer, SocketNetwork, Stream
from tests.support.in_memory.broker import BrokerWorld
from tests.support.in_memory.schema_registry import new_registry

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
BLOCK_BYTES = 1 << 20
SLICES_MAX = 512
ANSWER_BYTES = 40  # about a receipt
SYNCED_BYTES = 16 << 20


class Peer:
    """`with Peer("receipts") as peer`: it listens on `peer.port`."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.support.floors", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.strip():
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"peer {arguments[0]} did not start")
        self.port = int(line)

    def connect(self) -> socket.socket:
        sock = socket.create_connection((HOST, self.port), timeout=60.0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


class ReceiptCommands(CommandSet):
    """Every SEND is checked and answered at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._entries = 0

    def handlers(self) -> dict[BaseType, Handler]:
        return {int(BaseCommand.PRODUCER): self._producer, int(BaseCommand.SEND): self._send}

    def _producer(self, body: Any, frame: Frame) -> None:
        self._connection.send(replies.producer_success(body.request_id, "peer"))

    def _send(self, body: Any, frame: Frame) -> None:
        assert frame.payload is not None
        assert entry.checksum_ok(frame.payload)
        self._connection.send(receipt_frame(body.producer_id, body.sequence_id, 1, self._entries))
        self._entries += 1


class ReceiptRuns(ReceiptCommands):
    """The same for SENDs that are taken in runs, as the broker takes them where the extension was built."""

    def run_taker(self) -> TakeRun | None:
        return None if NATIVE is None else self._take

    def _take(self, view: memoryview, start: int, end: int, owned: bool, limit: int) -> tuple[int, int]:
        assert NATIVE is not None
        found = NATIVE.sends(view, start, end, limit)
        for _, _, _, _, body, after in found:
            assert entry.checksum_ok(view[body:after])
        if not found:
            return start, 0
        self._connection.send(NATIVE.receipts(found[0][0], 1, self._entries, -1, found))
        self._entries += len(found)
        return found[-1][5], len(found)


async def serve_connection(make: Callable[[Connection], ReceiptCommands]) -> None:
    """The broker's own connections, with nothing behind them: no topics, no storage."""
    world = BrokerWorld()
    services = Services(
        clock=world.clock,
        catalog=world.catalog,
        topics=world.topics,
        schemas=new_registry(world.store, world.catalog, world.clock),
        names=NameGenerator("peer"),
        address=Address("", ""),
    )
    scratch = bytearray(SCRATCH_BYTES)

    def accept(stream: Stream) -> Connection:
        connection = Connection(stream, services, scratch, lambda _: None)
        connection.serve(make(connection))
        return connection

    listener = await SocketNetwork().listen(HOST, 0, accept)
    listener.start()
    print(listener.port, flush=True)
    await asyncio.Event().wait()


class ReceiptHandler:
    """The bare socket and codec, checksum included: every SEND is answered at once. Less than a connection needs."""

    def __init__(self, stream: Stream, scratch: bytearray) -> None:
        self._stream = stream
        self._decoder = FrameDecoder(6 << 20, scratch)
        self._entries = 0

    def buffer(self) -> memoryview:
        return self._decoder.buffer()

    @property
    def block_bytes(self) -> int:
        return 0

    def received_block(self, block: bytes) -> None:
        raise AssertionError("not asked for")

    def received(self, count: int) -> None:
        out: list[Buffer] = []
        for one in self._decoder.received(count):
            kind, body = read_command(one.command)
            if kind == BaseCommand.SEND:
                assert one.payload is not None
                assert entry.checksum_ok(one.payload)
                out.append(receipt_frame(body.producer_id, body.sequence_id, 1, self._entries))
                self._entries += 1
            elif kind == BaseCommand.CONNECT:
                out.append(replies.connected("peer", 19, 5 << 20))
            elif kind == BaseCommand.PRODUCER:
                out.append(replies.producer_success(body.request_id, "peer"))
        self._stream.write(out)

    def drained(self) -> None:
        """Nothing waits for it."""

    def closed(self, reason: str) -> None:
        """Nothing to clean up."""


async def serve_receipts() -> None:
    scratch = bytearray(SCRATCH_BYTES)
    listener = await SocketNetwork().listen(HOST, 0, lambda stream: ReceiptHandler(stream, scratch))
    listener.start()
    print(listener.port, flush=True)
    await asyncio.Event().wait()


def serve_synced(path: str) -> None:
    """A loopback round trip with a write and an `fdatasync` of the same bytes in between, into a file that was written
    before: the cheapest sync there is. The first two bytes of a connection say how many a request has."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    for offset in range(0, SYNCED_BYTES, BLOCK_BYTES):
        os.pwrite(fd, bytes(BLOCK_BYTES), offset)
    os.fsync(fd)
    answer = bytes(ANSWER_BYTES)
    for sock in _accept():
        size = int.from_bytes(sock.recv(2, socket.MSG_WAITALL), "big")
        offset = 0
        while data := sock.recv(size, socket.MSG_WAITALL):
            os.pwrite(fd, data, offset)
            os.fdatasync(fd)
            sock.sendall(answer)
            offset = (offset + size) % SYNCED_BYTES
        sock.close()


def serve_file(path: str, entry_bytes: int) -> None:
    """`preadv` of 1 MB blocks and `sendmsg` of [head, entry] slices: all entries of the file, once per connection."""
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    head = message_header(entry_bytes, 1, 1, 1)
    block = bytearray(BLOCK_BYTES // entry_bytes * entry_bytes)
    view = memoryview(block)
    for sock in _accept():
        for offset in range(0, size, len(block)):
            found = os.preadv(fd, [block], offset)
            slices: list[Buffer] = []
            for at in range(0, found, entry_bytes):
                slices += (head, view[at : at + entry_bytes])
            for begin in range(0, len(slices), SLICES_MAX):
                _send_all(sock, slices[begin : begin + SLICES_MAX])
        sock.close()


def _send_all(sock: socket.socket, slices: list[Buffer]) -> None:
    sent = sock.sendmsg(slices)
    total = sum(map(len, slices))
    if sent < total:
        sock.sendall(b"".join(slices)[sent:])


def _accept() -> Iterator[socket.socket]:
    """Connections, one after the other."""
    with socket.create_server((HOST, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield sock


def main(arguments: list[str]) -> None:
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    match arguments:
        case ["connection"]:
            asyncio.run(serve_connection(ReceiptCommands))
        case ["runs"]:
            asyncio.run(serve_connection(ReceiptRuns))
        case ["receipts"]:
            asyncio.run(serve_receipts())
        case ["synced", path]:
            serve_synced(path)
        case ["file", path, entry_bytes]:
            serve_file(path, int(entry_bytes))
        case _:
            raise SystemExit(__doc__)


def _end_with_stdin() -> None:
    """No peer outlives the benchmark that started it."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
