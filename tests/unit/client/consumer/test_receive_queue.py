"""The buffer of a consumer: channels have their turns, order within one stays, held ones wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.consumer.buffer import TURN_MAX, ReceiveQueue
from anabranch.client.messages.message import Message, Origin


def message(n: int) -> Message:
    return Message(Origin("t", 0, n), -1, b"%d" % n, None, {}, None, n)


def taken(buffer: ReceiveQueue[str]) -> list[tuple[str, int]]:
    found = []
    while one := buffer.take():
        found.append((one[0], one[1].sequence_id))
    return found


def test_a_long_backlog_does_not_starve_the_others() -> None:
    buffer: ReceiveQueue[str] = ReceiveQueue()
    buffer.add("long", [message(n) for n in range(1000)])
    buffer.add("short", [message(5000)])
    order = taken(buffer)
    assert order.index(("short", 5000)) == TURN_MAX
    assert [n for channel, n in order if channel == "long"] == list(range(1000))


def test_a_held_channel_waits_and_keeps_its_place() -> None:
    buffer: ReceiveQueue[str] = ReceiveQueue()
    buffer.hold("child")
    buffer.add("child", [message(1), message(2)])
    buffer.add("parent", [message(0)])
    assert len(buffer) == 1
    assert taken(buffer) == [("parent", 0)]
    assert buffer.release("child") and not buffer.release("child")
    assert taken(buffer) == [("child", 1), ("child", 2)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "parcel", "drop", "hold", "release"]), st.integers(0, 3), st.integers(0, 40)
    ),
    max_size=80,
)


@given(steps=STEPS)
def test_nothing_is_lost_reordered_or_counted_wrong(steps: list[tuple[str, int, int]]) -> None:
    buffer: ReceiveQueue[int] = ReceiveQueue()
    model: dict[int, list[int]] = {channel: [] for channel in range(4)}
    held: set[int] = set()
    last = 0
    for name, channel, amount in steps:
        if name == "add":
            numbers = list(range(last, last + amount))
            last += amount
            buffer.add(channel, [message(n) for n in numbers])
            model[channel] += numbers
        elif name == "take":
            found = buffer.take()
            assert (found is None) == (not any(model[one] for one in model if one not in held))
            if found is not None:
                assert found[0] not in held
                assert model[found[0]].pop(0) == found[1].sequence_id
        elif name == "parcel":
            parcel = buffer.take_parcel()
            assert (parcel is None) == (not any(model[one] for one in model if one not in held))
            if parcel is not None:
                numbers = [one.sequence_id for one in parcel[1]]
                assert numbers and parcel[0] not in held
                assert model[parcel[0]][: len(numbers)] == numbers
                del model[parcel[0]][: len(numbers)]
        elif name == "drop":
            assert [one.sequence_id for one in buffer.drop(channel)] == model[channel]
            model[channel] = []
            held.discard(channel)
        elif name == "hold":
            buffer.hold(channel)
            held.add(channel)
        else:
            buffer.release(channel)
            held.discard(channel)
        assert len(buffer) == sum(len(model[one]) for one in model if one not in held)


def test_a_channel_is_let_go_when_the_last_reason_is_gone() -> None:
    buffer: ReceiveQueue[str] = ReceiveQueue()
    buffer.hold("c")
    buffer.hold("c", "schema 1")
    buffer.hold("c", "schema 2")
    buffer.add("c", [message(1)])
    assert not buffer.release("c", "schema 1")
    assert not buffer.release("c")
    assert taken(buffer) == []
    assert buffer.release("c", "schema 2")
    assert taken(buffer) == [("c", 1)]
    buffer.hold("c", "schema 3")
    buffer.add("c", [message(2)])
    assert [one.sequence_id for one in buffer.drop("c")] == [2]
    buffer.add("c", [message(3)])
    assert taken(buffer) == [("c", 3)], "what is dropped is not held any more"
