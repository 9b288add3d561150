"""Codec micro-benchmark: what one frame costs in Python, as times and as ratios to the naive way in the same run.

    python benchmarks/micro/codec.py [--quick] [--json]

Expected before measuring, from the price of one upb call (0.2-0.5 µs) and of one Python call (0.05 µs): receipt and
message header below 1 µs, reading a SEND frame (decoder, command, checksum) below 2 µs, nothing that grows with time.
Times are the best of several rounds: a shared machine only ever adds to them.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from struct import pack
from timeit import repeat

from anabranch.model import keyhash as plain_keyhash
from anabranch.protocol import entry, keyhash
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import frame_with_payload, message_header, read_command, receipt_frame
from anabranch.protocol.frames import FrameDecoder


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    micros: float
    naive: str
    naive_micros: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the naive way."""
        return self.naive_micros / self.micros


def naive_receipt() -> bytes:
    identity = pb.MessageIdData(ledgerId=1234, entryId=99_999)
    body = pb.CommandSendReceipt(producer_id=3, sequence_id=123_456, message_id=identity, highest_sequence_id=0)
    data = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT, send_receipt=body).SerializeToString()
    return pack(">II", len(data) + 4, len(data)) + data


def naive_header() -> bytes:
    identity = pb.MessageIdData(ledgerId=1234, entryId=99_999)
    body = pb.CommandMessage(consumer_id=3, message_id=identity)
    data = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=body).SerializeToString()
    return pack(">II", len(data) + 4 + 150, len(data)) + data


def send_frames(count: int, payload: bytes) -> bytes:
    send = pb.CommandSend(producer_id=3, sequence_id=123_456, num_messages=100)
    return frame_with_payload(pb.BaseCommand(type=pb.BaseCommand.SEND, send=send), payload) * count


def micros(action: Callable[[], object], number: int, per_call: int = 1) -> float:
    return min(repeat(action, number=number, repeat=5)) / number / per_call * 1e6


def decode(stream: bytes, scratch: bytearray) -> Callable[[], object]:
    """Everything a broker does with bytes before it looks for the producer."""
    decoder = FrameDecoder(5 * 2**20, scratch)
    scratch[: len(stream)] = stream

    def run() -> int:
        seen = 0
        for one in decoder.received(len(stream)):
            kind, send = read_command(one.command)
            assert one.payload is not None
            seen += kind + send.num_messages + entry.checksum_ok(one.payload)
        return seen

    return run


def decode_naive(stream: bytes) -> Callable[[], object]:
    """The same by slicing bytes, with a full check of every command."""

    def run() -> int:
        seen, rest = 0, stream
        while rest:
            total = int.from_bytes(rest[:4], "big")
            one, rest = rest[4 : 4 + total], rest[4 + total :]
            size = int.from_bytes(one[:4], "big")
            command = pb.BaseCommand()
            command.ParseFromString(one[4 : 4 + size])
            assert command.IsInitialized()
            seen += command.type + command.send.num_messages + entry.checksum_ok(one[4 + size :])
        return seen

    return run


def measure(quick: bool) -> list[Row]:
    number = 2_000 if quick else 50_000
    assert receipt_frame(3, 123_456, 1234, 99_999) == naive_receipt()
    assert message_header(150, 3, 1234, 99_999) == naive_header()
    small, large = entry.build_entry(b"x" * 100, key="key-1"), entry.build_batch([b"x" * 100] * 100)
    stream, stream_large = send_frames(100, small), send_frames(10, large)
    scratch = bytearray(256 * 1024)

    def naive_publish_time() -> int:
        return entry.metadata(small).publish_time

    def row(name: str, action: Callable[[], object], naive: str, other: Callable[[], object], per_call: int = 1) -> Row:
        rounds = max(1, number // per_call)
        return Row(name, micros(action, rounds, per_call), naive, micros(other, rounds, per_call))

    return [
        row("receipt frame", lambda: receipt_frame(3, 123_456, 1234, 99_999), "new messages", naive_receipt),
        row("message header", lambda: message_header(150, 3, 1234, 99_999), "new messages", naive_header),
        row("read SEND, 100 B entry", decode(stream, scratch), "slices, full check", decode_naive(stream), 100),
        row(
            "read SEND, 11 KB batch",
            decode(stream_large, scratch),
            "slices, full check",
            decode_naive(stream_large),
            10,
        ),
        row("publish time", lambda: entry.publish_time_of(small), "checked metadata", naive_publish_time),
        row(
            "key hash",
            lambda: keyhash.murmur3_32(b"orders-42"),
            "pure Python",
            lambda: plain_keyhash.murmur3_32(b"orders-42"),
        ),
        row("sticky key", lambda: entry.sticky_key(small), "whole split", lambda: entry.split_batch(small)),
    ]


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description="What one frame costs.")
    options.add_argument("--quick", action="store_true", help="few rounds: shows that it runs, not how fast")
    options.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    chosen = options.parse_args(arguments)
    rows = measure(chosen.quick)
    if chosen.json:
        record = {
            "benchmark": "micro_codec",
            "python": platform.python_version(),
            "quick": chosen.quick,
            "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
        }
        sys.stdout.write(json.dumps(record) + "\n")
        return 0
    sys.stdout.write(f"{'':26}{'µs':>8}{'naive µs':>10}{'ratio':>8}  naive way\n")
    for row in rows:
        sys.stdout.write(f"{row.name:26}{row.micros:8.2f}{row.naive_micros:10.2f}{row.ratio:8.1f}  {row.naive}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
