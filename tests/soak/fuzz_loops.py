"""The C loops of protocol and storage under AddressSanitizer and UndefinedBehaviorSanitizer.

`python -m tests.soak.fuzz_loops --cases N` builds both extensions into a temporary directory, then feeds them and the
Python loops the same valid and damaged input in a child process. Exit codes as in `fuzz_codec`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.support.fuzz.sanitizer_builds import load, say, soak

PARTS = ("protocol", "storage")


def child(directory: str, cases: int, seed: int) -> int:
    loaded: dict[str, Any] = {part: load(part, Path(directory)) for part in PARTS}
    from anabranch.protocol import native
    from anabranch.protocol.messages import NativeRuns, PlainRuns
    from anabranch.storage.ledger import record_runs as runs
    from tests.support.fuzz.ledger_cases import block_case
    from tests.support.fuzz.send_paths import published

    assert native.NATIVE is not None and native.NATIVE.sends is loaded["protocol"].sends
    assert runs.NATIVE is not None, "the processor has no instruction for CRC-32C that the extension knows"
    differing = 0
    for number in range(seed, seed + cases):
        chance = random.Random(number)
        sent, cuts, blocks = send_bytes(chance), [chance.randrange(900) for _ in range(3)], chance.random() < 0.5
        asked = block_case(number)
        found, after = runs.NATIVE(*asked)
        run = (found, chance.randrange(3), 1 << 14, chance.choice((1, 150, 1 << 40)))
        consumer, partition = chance.choice((0, 1, 300, (1 << 64) - 1)), chance.choice((-1, 0, 3, (1 << 31) - 1))
        agree = (
            (found, after) == runs.plain_run(*asked),
            NativeRuns(consumer, partition).take(*run) == PlainRuns(consumer, partition).take(*run),
            published(sent, cuts, native=True, blocks=blocks) == published(sent, cuts, native=False, blocks=blocks),
        )
        if not all(agree):
            differing += 1
            say(f"seed {number}: the implementations differ: entries, heads, sends agree: {agree}")
    say(f"{cases} cases, {differing} differ")
    return 1 if differing else 0


def send_bytes(chance: random.Random) -> bytes:
    """Some SEND frames, half of the time damaged."""
    from anabranch.protocol import entry
    from anabranch.protocol import pulsar_pb2 as pb
    from anabranch.protocol.commands import BaseCommand, frame_with_payload

    data = bytearray()
    for _ in range(chance.randrange(6)):
        send = pb.CommandSend(producer_id=chance.randrange(4), sequence_id=chance.choice((0, 127, 128, (1 << 64) - 1)))
        if chance.random() < 0.5:
            send.num_messages = chance.choice((0, 1, 100, -1, (1 << 31) - 1))
        if chance.random() < 0.5:
            send.highest_sequence_id = chance.choice((0, 5, 1 << 63))
        if chance.random() < 0.1:
            send.is_chunk = True
        payload = entry.build_entry(chance.randbytes(chance.choice((0, 3, 80))), publish_time=1)
        data += frame_with_payload(BaseCommand(type=BaseCommand.SEND, send=send), payload)
    for _ in range(chance.choice((0, 0, 1, 3)) if data else 0):
        data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.2:
        del data[chance.randrange(len(data) + 1) :]
    return bytes(data)


def main(arguments: list[str] | None = None) -> int:
    return soak("tests.soak.fuzz_loops", PARTS, child, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
