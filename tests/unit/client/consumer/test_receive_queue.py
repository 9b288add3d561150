"""The receive queue: sources take turns, order within a source is kept, held sources wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.consumer.receive_queue import TURN_MAX, ReceiveQueue
from anabranch.client.messages.message import Message, Origin


def message(n: int) -> Message:
    return Message(Origin("t", 0, n), -1, b"%d" % n, None, {}, None, n)


def taken(queue: ReceiveQueue[str]) -> list[tuple[str, int]]:
    found = []
    while one := queue.take():
        found.append((one[0], one[1].sequence_id))
    return found


def test_long_backlog_does_not_starve_other_sources() -> None:
    queue: ReceiveQueue[str] = ReceiveQueue()
    queue.add("long", [message(n) for n in range(1000)])
    queue.add("short", [message(5000)])
    order = taken(queue)
    assert order.index(("short", 5000)) == TURN_MAX
    assert [n for source, n in order if source == "long"] == list(range(1000))


def test_held_source_keeps_its_messages_until_released() -> None:
    queue: ReceiveQueue[str] = ReceiveQueue()
    queue.hold("child")
    queue.add("child", [message(1), message(2)])
    queue.add("parent", [message(0)])
    assert len(queue) == 1
    assert taken(queue) == [("parent", 0)]
    assert queue.release("child") and not queue.release("child")
    assert taken(queue) == [("child", 1), ("child", 2)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "entry", "drop", "hold", "release"]), st.integers(0, 3), st.integers(0, 40)
    ),
    max_size=80,
)


@given(steps=STEPS)
def test_receive_queue_loses_reorders_and_miscounts_nothing(steps: list[tuple[str, int, int]]) -> None:
    queue: ReceiveQueue[int] = ReceiveQueue()
    model: dict[int, list[int]] = {source: [] for source in range(4)}
    held: set[int] = set()
    last = 0
    for name, source, amount in steps:
        if name == "add":
            numbers = list(range(last, last + amount))
            last += amount
            queue.add(source, [message(n) for n in numbers])
            model[source] += numbers
        elif name == "take":
            found = queue.take()
            assert (found is None) == (not any(model[one] for one in model if one not in held))
            if found is not None:
                assert found[0] not in held
                assert model[found[0]].pop(0) == found[1].sequence_id
        elif name == "entry":
            entry = queue.take_entry()
            assert (entry is None) == (not any(model[one] for one in model if one not in held))
            if entry is not None:
                numbers = [one.sequence_id for one in entry[1]]
                assert numbers and entry[0] not in held
                assert model[entry[0]][: len(numbers)] == numbers
                del model[entry[0]][: len(numbers)]
        elif name == "drop":
            assert [one.sequence_id for one in queue.drop(source)] == model[source]
            model[source] = []
            held.discard(source)
        elif name == "hold":
            queue.hold(source)
            held.add(source)
        else:
            queue.release(source)
            held.discard(source)
        assert len(queue) == sum(len(model[one]) for one in model if one not in held)


def test_source_is_released_with_its_last_hold_reason() -> None:
    queue: ReceiveQueue[str] = ReceiveQueue()
    queue.hold("c")
    queue.hold("c", "schema 1")
    queue.hold("c", "schema 2")
    queue.add("c", [message(1)])
    assert not queue.release("c", "schema 1")
    assert not queue.release("c")
    assert taken(queue) == []
    assert queue.release("c", "schema 2")
    assert taken(queue) == [("c", 1)]
    queue.hold("c", "schema 3")
    queue.add("c", [message(2)])
    assert [one.sequence_id for one in queue.drop("c")] == [2]
    queue.add("c", [message(3)])
    assert taken(queue) == [("c", 3)], "what is dropped is not held any more"
