"""The publish path of a connection in Python and through the C loops; both must have the same effects.

Contains a connection and its topics as far as needed. Used by the property test and by the fuzz under AddressSanitizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from anabranch.broker.wire.producer_commands import Attached, ProducerCommands
from anabranch.protocol.commands import BaseCommand, read_command
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.frames import Frame, FrameDecoder

FRAME_BYTES_MAX = 2_000


class Effects:
    """What reached the topics and what was answered, in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def send(self, *buffers: bytes) -> None:
        self.events.append(("said", b"".join(buffers)))


class Topic:
    def __init__(self, effects: Effects) -> None:
        self._effects = effects

    def publish_run(self, producer: FakeProducer, run: Sequence[Any]) -> None:
        self._effects.events += [(*publish[1:5], bytes(publish.payload), publish.is_last_chunk) for publish in run]
        self._effects.events.append(("run of", producer.number))


class FakeProducer:
    def __init__(self, number: int) -> None:
        self.number = number
        self.closed = number == 2
        self.is_ready = True
        self.chunks_in = 0


def published(data: bytes, cuts: Sequence[int], *, native: bool, blocks: bool) -> list[Any]:
    """`data` arrives in pieces that end at `cuts`; `blocks`: as new bytes objects where the decoder takes them."""
    effects = Effects()
    connection: Any = effects
    commands = ProducerCommands(connection, None)  # type: ignore[arg-type]  # SENDs of known producers need no more
    for number in range(3):
        producer: Any = FakeProducer(number)
        commands._attached[number] = Attached(producer, Topic(effects))  # type: ignore[arg-type]  # what the test needs of a topic
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    if native:
        decoder.take_run = commands.run_taker()
        assert decoder.take_run is not None
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    try:
        for low, high in pairwise(edges):
            while low < high:
                if blocks:
                    size = high - low
                    found = decoder.received_block(data[low:high]) if decoder._own is None else None
                if not blocks or found is None:
                    buffer = decoder.buffer()
                    size = min(buffer.nbytes, high - low)
                    buffer[:size] = data[low : low + size]
                    found = decoder.received(size)
                low += size
                for one in found:
                    _handle(commands, one, effects)
                commands.step_ended()
    except ProtocolError as error:
        commands.step_ended()
        effects.events.append((type(error).__name__, error.reason))
    return effects.events


def _handle(commands: ProducerCommands, found: Frame, effects: Effects) -> None:
    kind, body = read_command(found.command)
    if kind == BaseCommand.SEND:
        commands._send(body, found)
    else:
        effects.events.append(kind)
