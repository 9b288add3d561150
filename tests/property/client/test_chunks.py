"""Chunked messages under any mixture of producers, resends, acks and reconnects: all are delivered, complete."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.client.consumer.segment.effects import Ack, Deliver, Effect, Redeliver, Reject
from anabranch.client.consumer.segment.segment_consumer_state import SegmentConsumerState
from anabranch.client.messages.chunking import entries_of
from anabranch.client.messages.message import Message
from anabranch.client.messages.outgoing import EntryFormat, OutgoingMessage
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import build_entry

Entry = tuple[str, bytes]  # what it belongs to, its bytes


class Topic:
    """A log with a subscription of one consumer: hands out from the cursor on, in order."""

    def __init__(self, log: list[Entry]) -> None:
        self.log = log
        self.cursor = -1  # everything up to here is acknowledged
        self.acked: set[int] = set()
        self.next = 0

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ack) and effect.is_cumulative:
                self.cursor = max(self.cursor, effect.ids[0].entryId)
            elif isinstance(effect, Ack):
                self.acked |= {one.entryId for one in effect.ids}
            assert not isinstance(effect, Reject | Redeliver), "everything is complete"

    def reopened(self) -> None:
        self.next = self.cursor + 1

    def following(self) -> tuple[pb.CommandMessage, bytes] | None:
        while self.next < len(self.log) and self.next in self.acked:
            self.next += 1
        if self.next >= len(self.log):
            return None
        identity = pb.MessageIdData(ledgerId=1, entryId=self.next)
        data = self.log[self.next][1]
        self.next += 1
        return pb.CommandMessage(consumer_id=1, message_id=identity), data


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Entry], dict[str, bytes]]:
    """Entries of up to three producers in any mixture; chunks may be there twice, as after a lost receipt."""
    values: dict[str, bytes] = {}
    streams: list[list[Entry]] = []
    for producer in range(draw(st.integers(1, 3))):
        stream: list[Entry] = []
        for number in range(draw(st.integers(1, 4))):
            name = f"{producer}-{number}"
            size = draw(st.sampled_from([5, 1500, 2600]))
            values[name] = name.encode().ljust(size, b".")
            if size == 5:
                stream.append((name, build_entry(values[name], producer_name=str(producer))))
                continue
            record = OutgoingMessage(number, values[name])
            chunks = [one.data for one in entries_of(record, EntryFormat(str(producer), chunk_bytes=800), 1000)]
            again = draw(st.integers(0, len(chunks)))  # sent, and sent again from an earlier one on
            since = draw(st.integers(1 if again == len(chunks) else 0, again))  # all of it would be another message
            stream += [(name, data) for data in (*chunks[:again], *chunks[since:])]
        streams.append(stream)
    log: list[Entry] = []
    while streams:
        stream = draw(st.sampled_from(streams))
        log.append(stream.pop(0))
        streams = [one for one in streams if one]
    return log, values


@settings(max_examples=150, deadline=None)
@given(logs(), st.lists(st.sampled_from(["deliver", "deliver", "take", "ack", "lose", "restart"]), max_size=80))
def test_stream_delivers_every_chunked_message_once(
    made: tuple[list[Entry], dict[str, bytes]], steps: list[str]
) -> None:
    """`restart` is another consumer of the subscription: it sees what was not acknowledged, and that whole."""
    log, values = made
    topic = Topic(log)
    state = SegmentConsumerState("t", prefetch=1000)
    topic.take(state.opened())
    buffer: list[Message] = []
    taken: list[Message] = []
    acked: set[str] = set()
    seen: list[str] = []  # by this consumer

    def name_of(message: Message) -> str:
        return message.data.rstrip(b".").decode()

    def step(kind: str) -> None:
        nonlocal state
        if kind == "deliver" and (following := topic.following()) is not None:
            for effect in state.delivered(*following):
                if isinstance(effect, Deliver):
                    buffer.extend(effect.messages)
                else:
                    topic.take([effect])
        elif kind == "take" and buffer:
            message = buffer.pop(0)
            taken.append(message)
            assert message.data == values[name_of(message)]
            assert name_of(message) not in seen, "handed out twice"
            assert name_of(message) not in acked, "acknowledged, and handed out again"
            seen.append(name_of(message))
        elif kind == "ack" and taken:
            state.ack_cumulative(taken[-1].id)
            topic.take(state.flush())
            acked.update(map(name_of, taken))
            taken.clear()
        elif kind == "lose":
            state.lost([message.id for message in buffer])
            buffer.clear()
            topic.reopened()
            topic.take(state.opened())
        elif kind == "restart":
            buffer.clear()
            taken.clear()
            seen.clear()
            state = SegmentConsumerState("t", prefetch=1000)
            topic.reopened()
            # Acknowledged means done with; what lies before a message in chunks may come again to another consumer.
            acked.clear()
            topic.take(state.opened())

    done: set[str] = set()
    for kind in steps:
        step(kind)
        done |= set(seen)
    for _ in range(len(log) + 1):
        step("deliver")
        step("take")
    while buffer:
        step("take")
    assert done | set(seen) == set(values), "a message is missing"
    step("ack")
    # Echoes of what a former consumer completed have no beginning any more: they are given up when they are old.
    for effect in [*state.expire(1e9), *state.flush()]:
        if isinstance(effect, Reject):
            assert log[effect.id.entryId][0] in done | set(seen)
            topic.acked.add(effect.id.entryId)
        else:
            topic.take([effect])
    assert {n for n in range(len(log)) if n > topic.cursor} <= topic.acked, "everything is acknowledged"
