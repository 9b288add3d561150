"""Pulsar's clients, which send no generations, alone or among clients that do, in the simulation of groups.

The controller grants such a client to the segment owners before it sends the assignment. The client attaches
exclusively, without a generation, and retries until it is admitted. It reports neither releases nor its leave: it
closes its readers. No two consumers read one segment at a time, keys keep their order, and in the end all is read.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from anabranch.controller import segment_host as host
from anabranch.controller.group import assignment as assigning
from anabranch.controller.group.assignment import AwaitRelease
from anabranch.controller.group.consumer_sessions import Disconnected, LeftCleanly, Registered
from anabranch.controller.group.group_events import CloseConsumer, Push
from anabranch.controller.segment_host import Answer, FencingToken, SegmentRef
from tests.simulation.test_controller_groups import RELEASE_MS, Consumer, GroupLeader, GroupLife, run_life
from tests.simulation.test_controller_operations import SEEDS
from tests.support.simulation.controller import Leader, name_of
from tests.support.simulation.metadata_processes import seeds

GRANT_MS = 200
NO_GENERATION = -1


class PlainConsumer(Consumer):
    """A process with Pulsar's client."""

    def __init__(self, life: MixedLife, subscription: str, name: str) -> None:
        super().__init__(life, subscription, name)
        self._mixed = life
        self.is_dying = False

    @property
    def is_new(self) -> bool:
        return False  # it cannot say

    def say_held(self, generation: int) -> None:
        """Pulsar's clients report no release."""

    def detach(self, segment_id: int) -> None:
        was_reading = self._mixed.reader(self.subscription, segment_id) is self
        super().detach(segment_id)
        if was_reading and not self.is_dying:
            self._mixed.reader_left(self.subscription, segment_id, self.name)

    def leave(self) -> None:
        """It closes its readers; its connection ends some time later."""
        self.is_gone = True
        for one in tuple(self.held):
            self.detach(one)
        self._life.at(500, self.drop)

    def die(self) -> None:
        self.is_dying = True
        super().die()


class PlainLeader(GroupLeader):
    """Handles such clients like the shell (`group_coordinator.py`)."""

    def __init__(self, world: MixedLife, term: int) -> None:
        super().__init__(world, term)
        self.mixed = world
        self.links: dict[int, tuple[str, str]] = {}  # connection -> subscription, name
        self.pushed: dict[int, Push] = {}
        self.left: dict[int, set[int]] = {}

    def tell(self, subscription: str, event: Any) -> None:
        match event:
            case Registered(name, connection):
                self.links[connection] = subscription, name
            case Disconnected(connection):
                self.forget(connection)
        super().tell(subscription, event)

    def forget(self, connection: int) -> None:
        self.links.pop(connection, None)
        self.pushed.pop(connection, None)
        self.left.pop(connection, None)

    def is_plain(self, connection: int) -> bool:
        return isinstance(self.mixed.consumers.get(connection), PlainConsumer)

    def do_more(self, machine: Any, effect: Any) -> None:
        name = next((name for name, group in self.groups.items() if group is machine), "")
        match effect:
            case Push(connection) if self.is_plain(connection):
                self.push(name, effect)
            case AwaitRelease(segment_id, holder, generation) if self.hands_over_by_closing(name, holder):
                self.mixed.at(0, lambda: self.deliver(machine, assigning.Released(holder, segment_id, generation)))
                self.mixed.at(RELEASE_MS, lambda: self.close_if_kept(name, holder, segment_id, generation))
            case _:
                super().do_more(machine, effect)

    def hands_over_by_closing(self, subscription: str, holder: str) -> bool:
        links = [connection for connection, link in self.links.items() if link == (subscription, holder)]
        return bool(links) and all(map(self.is_plain, links))

    def close_if_kept(self, name: str, holder: str, segment_id: int, generation: int) -> None:
        assignment = self.groups[name].assignment
        has_it_again = holder in assignment.members and segment_id in assignment.assigned(holder).segment_ids
        if not has_it_again:
            self.close_at(name, CloseConsumer(holder, segment_id, generation), segment_id, lambda: None)

    def push(self, name: str, push: Push) -> None:
        life, before = self.mixed, self.pushed.get(push.connection)
        self.say(f"{name}: {push.consumer}, without generations, has {list(push.segment_ids)} ({push.generation})")
        self.pushed[push.connection] = push
        missing = set(push.segment_ids) - set(() if before is None else before.segment_ids)

        def sent() -> None:
            if self.pushed.get(push.connection) is push and push.connection in life.consumers:
                life.at(life.chance.randint(0, 5), lambda: life.consumers[push.connection].assigned(push))

        def granted(segment_id: int) -> None:
            missing.discard(segment_id)
            if not missing:
                sent()

        if missing:
            life.at(GRANT_MS, lambda: sent() if missing else None)
        else:
            sent()
        for one in sorted(missing):
            self.grant(name, push, one, partial(granted, one))

    def grant(self, name: str, push: Push, segment_id: int, done: Any) -> None:
        life, record, so = self.mixed, self.mixed.record, self.pushed.get(push.connection)
        if self.is_dead or record is None or segment_id not in record.segments:
            return
        if so is None or segment_id not in so.segment_ids:
            return
        ref = SegmentRef(name_of(record.segments[segment_id]), record.incarnation, segment_id)
        request = host.GrantReader("grant", ref, name, push.consumer, push.generation)
        again = partial(self.grant, name, push, segment_id, done)
        life.ask_host(
            FencingToken(self.term, next(self._numbers)), request, lambda _: done(), lambda _: life.at(50, again)
        )

    def hear_one(self, name: str, event: host.HostEvent) -> None:
        if not isinstance(event, host.ReaderLeft):
            super().hear_one(name, event)
        elif event.subscription == name:
            self.reader_left(name, event.segment.segment_id, event.reader)

    def reader_left(self, subscription: str, segment_id: int, reader: str) -> None:
        for connection, link in tuple(self.links.items()):
            sent = self.pushed.get(connection)
            if link != (subscription, reader) or sent is None or not self.is_plain(connection):
                continue
            if segment_id not in sent.segment_ids:
                continue
            left = self.left.setdefault(connection, set())
            left.add(segment_id)
            if set(sent.segment_ids) <= left:
                self.say(f"{subscription}: {reader} has closed everything")
                self.forget(connection)
                self.tell(subscription, LeftCleanly(reader, connection))


class MixedLife(GroupLife):
    def __init__(self, seed: int) -> None:
        self.plain_share = (0.5, 1.0)[seed % 2]
        super().__init__(seed)
        apply = self.shelf.apply

        def sent(token: FencingToken, request: host.Request, now_ms: int) -> Answer:
            """Owners close readers with an outdated generation when another is granted."""
            answer = apply(token, request, now_ms)
            if isinstance(request, host.GrantReader):
                self.send_away(request.subscription, request.segment.segment_id, strangers=False)
            return answer

        self.shelf.apply = sent  # type: ignore[method-assign]  # the same, and what it means for readers

    def new_leader(self, term: int) -> Leader:
        return PlainLeader(self, term)

    def new_consumer(self, subscription: str, name: str, before: Consumer | None) -> Consumer:
        is_plain = self.chance.random() < self.plain_share if before is None else isinstance(before, PlainConsumer)
        return PlainConsumer(self, subscription, name) if is_plain else Consumer(self, subscription, name)

    def reader_left(self, subscription: str, segment_id: int, reader: str) -> None:
        record = self.record
        if record is not None and segment_id in record.segments:
            ref = SegmentRef(name_of(record.segments[segment_id]), record.incarnation, segment_id)
            self.broadcast(host.ReaderLeft(ref, subscription, reader))

    def subscribed(self, consumer: Consumer, segment_id: int, generation: int) -> None:
        key, fence = (consumer.subscription, segment_id), self.fence_of(consumer.subscription, segment_id)
        before = self.reader(*key)
        if not isinstance(consumer, PlainConsumer):
            if isinstance(before, PlainConsumer) and fence and fence.admits(consumer.name, segment_id, generation):
                fence.raise_to(generation)
                consumer.closed(segment_id)  # busy: it comes again soon
            else:
                super().subscribed(consumer, segment_id, generation)
        elif fence is None:
            consumer.detach(segment_id)
        elif before is consumer:
            return  # one that came late: it is there already
        elif before is not None or not fence.admits(consumer.name, segment_id, None):
            consumer.closed(segment_id)  # it retries
        elif not consumer.is_gone and segment_id in consumer.held:
            self.readers[key] = consumer, NO_GENERATION

    def send_away(self, subscription: str, segment_id: int, *, strangers: bool = True) -> None:
        key, fence = (subscription, segment_id), self.fence_of(subscription, segment_id)
        if key in self.readers and fence is not None:
            consumer, generation = self.readers[key]
            if isinstance(consumer, PlainConsumer):
                is_over = strangers and not fence.admits(consumer.name, segment_id, None)
            else:
                is_over = generation < fence.generation
            if is_over:
                del self.readers[key]
                consumer.closed(segment_id)

    def check_assigned(self) -> None:
        """Each segment is read by the consumer it is assigned to."""
        super().check_assigned()
        for (name, one), (reader, _) in self.readers.items():
            mine = self.leader_groups()[name].assignment.assigned(reader.name).segment_ids
            self.must(one in mine, f"{name}: {reader.name} reads {one}, but is assigned {mine}")


@pytest.mark.parametrize("part", seeds(max(1, SEEDS // 10), 5))
def test_clients_without_generations_under_faults(part: range) -> None:
    for seed in part:
        run_life(seed, MixedLife)
