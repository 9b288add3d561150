"""`OrderedHandlers` under any interleaving of arrivals, results and failures: key order, acks, bounds, no stall."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.client.processing.handler_state import (
    Acknowledge,
    Effect,
    GiveUp,
    OrderedHandlers,
    RetryLater,
    Skip,
    Start,
)

ANCESTORS: dict[Hashable, Collection[Hashable]] = {1: (0,), 2: (0,), 3: (0, 1, 2)}
"""Segment 0 is split into 1 and 2, which are merged into 3."""
SOURCE_OF_KEY = {0: (0, 1, 3), 1: (0, 1, 3), 2: (0, 2, 3), None: (0, 1, 3)}
"""The segments of each key, in order."""


class World:
    """Performs the effects, and checks each one when it comes."""

    def __init__(self, concurrency: int, pending_max: int, attempts: int | None, skips: bool) -> None:
        self.state = OrderedHandlers(
            concurrency=concurrency,
            pending_max=pending_max,
            attempts=attempts,
            skips=skips,
            ancestors_of=lambda source: ANCESTORS.get(source, ()),
        )
        self.concurrency, self.pending_max, self.attempts = concurrency, pending_max, attempts
        self.source: dict[int, int] = {}
        self.lane: dict[int, Hashable] = {}
        self.running: list[int] = []
        self.backing_off: list[int] = []
        self.done: set[int] = set()
        self.acked: set[int] = set()
        self.is_stopped = False

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(number):
                    assert not self.is_stopped
                    earlier = [one for one, lane in self.lane.items() if lane == self.lane[number] and one < number]
                    assert self.done.issuperset(earlier), f"{number} overtakes {earlier}"
                    assert number not in self.done
                    assert number not in self.running
                    self.running.append(number)
                    assert len(self.running) <= self.concurrency
                case Acknowledge(numbers):
                    self.acknowledge(numbers)
                case RetryLater(number, _):
                    self.backing_off.append(number)
                case Skip(number):
                    self.done.add(number)
                case GiveUp():
                    self.is_stopped = True
                case _:
                    raise AssertionError(effect)

    def acknowledge(self, numbers: tuple[int, ...]) -> None:
        source = self.source[numbers[-1]]
        covered = {one for one, at in self.source.items() if at == source and one <= numbers[-1]}
        assert self.done >= covered, "an unfinished message would be lost"
        assert set(numbers) == covered - self.acked
        older = {one for one, at in self.source.items() if at in ANCESTORS.get(source, ()) and one < numbers[-1]}
        assert self.acked >= older, "an ancestor has unacknowledged messages"
        self.acked |= covered

    def receive(self, number: int, source: int, key: int | None) -> None:
        self.source[number] = source
        self.lane[number] = ("none", source) if key is None else key
        self.perform(self.state.received(number, source, key))
        assert self.state.unacknowledged == len(self.source) - len(self.acked) <= self.pending_max

    def finish(self, index: int, is_failure: bool) -> None:
        number = self.running.pop(index % len(self.running))
        if is_failure:
            self.perform(self.state.failed(number))
        else:
            self.done.add(number)
            self.perform(self.state.finished(number))

    def wake(self, index: int) -> None:
        number = self.backing_off.pop(index % len(self.backing_off))
        self.perform(self.state.due(number))


@settings(max_examples=300)
@given(
    st.integers(1, 4),
    st.integers(1, 12),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from([0, 1, 2, None]), st.integers(0, 2)), max_size=25),
    st.lists(st.tuples(st.sampled_from(["receive", "finish", "fail", "wake"]), st.integers(0, 20)), max_size=120),
)
def test_any_interleaving_keeps_key_order_and_acks_only_finished_prefixes(
    concurrency: int,
    pending_max: int,
    attempts: int | None,
    skips: bool,
    arrivals: list[tuple[int | None, int]],
    steps: list[tuple[str, int]],
) -> None:
    world = World(concurrency, pending_max, attempts, skips)
    # Parents are received before their children.
    ordered = sorted(arrivals, key=lambda one: (SOURCE_OF_KEY[one[0]][one[1]] + 1) // 2)
    ahead = [(number, SOURCE_OF_KEY[key][step], key) for number, (key, step) in enumerate(ordered, 1)]
    for what, index in steps:
        if what == "receive" and ahead and world.state.has_room and not world.is_stopped:
            world.receive(*ahead.pop(0))
        elif what in ("finish", "fail") and world.running:
            world.finish(index, what == "fail")
        elif what == "wake" and world.backing_off and not world.is_stopped:
            world.wake(index)
    if world.is_stopped:
        while world.running:
            world.finish(0, False)
        assert world.acked <= world.done
        return
    while world.running or world.backing_off or ahead:  # everything succeeds from now on
        if world.running:
            world.finish(0, False)
        elif world.backing_off:
            world.wake(0)
        else:
            assert world.state.has_room, "nothing runs and nothing may be received"
            world.receive(*ahead.pop(0))
    assert world.acked == set(world.source)
    assert world.state.unacknowledged == 0
