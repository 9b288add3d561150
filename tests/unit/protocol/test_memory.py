"""Decoding frames leaks no memory. upb keeps memory that tracemalloc cannot see, so resident pages are counted."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import message_header, read_command, receipt_frame

ROUNDS = 100_000
SEND = pb.BaseCommand(
    type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=1, sequence_id=2**30, num_messages=100)
).SerializeToString()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(
    "once",
    [
        lambda: read_command(SEND),
        lambda: receipt_frame(1, 2**30, 5, 6, 7, 8, 9, 10),
        lambda: message_header(100, 1, 2, 3, 4),
        lambda: message_header(100, 1, 2, 3, 4, 5, [6, 7], 8),
    ],
    ids=["read", "receipt", "header", "rare header"],
)
def test_memory_stays_flat(once: Callable[[], object]) -> None:
    for _ in range(ROUNDS // 10):
        once()
    before = resident_bytes()
    for _ in range(ROUNDS):
        once()
    assert resident_bytes() - before < 2 * 1024 * 1024  # 60 bytes kept per frame would be 6 MB


REUSED = f"""
import resource
from pathlib import Path
from anabranch.protocol import pulsar_pb2 as pb

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

command = pb.BaseCommand()
before = resident_bytes()
for _ in range({ROUNDS}):
    command.ParseFromString({SEND!r})
print(resident_bytes() - before)
"""


def test_one_reused_message_would_not_stay_flat() -> None:
    """Shows why `read_command` creates a new message each time; if this fails, upb has learnt to free memory.

    Runs in its own process, because in this one earlier tests may have left pages that are filled first.
    """
    done = subprocess.run([sys.executable, "-c", REUSED], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) > 3 * 1024 * 1024
