"""Bulk calls among single sends, under random splits and merges and lost connections: keys stay in order, nothing is
lost, and every call has exactly one outcome."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.client.config import Batching
from anabranch.client.errors import ClientError
from anabranch.client.messages.message import MessageId
from anabranch.client.messages.outgoing import EntryFormat
from anabranch.client.producer.bulk_send import Bulk, BulkEntry, Sent
from anabranch.client.producer.producer_effects import On, SegmentLane
from anabranch.client.producer.segment_producer_state import Effect, Stored
from tests.property.client.test_producer_state import step
from tests.support.models.producer_model import KEYS, ProducerWorld

FOREVER = float("inf")


class BulkWorld(ProducerWorld):
    """The producer model with an application that also calls `send_batch`."""

    calls = 0

    def __init__(self, chance: random.Random, *, is_ours: bool) -> None:
        self.outcomes: list[Sent | ClientError] = []
        self.one_by_one = 0
        super().__init__(segments=chance.randint(1, 3), batch=chance.randint(1, 4), is_ours=is_ours)

    def send_bulk(self, keys: list[str | None], entry_rows: int) -> None:
        first = self.next_order
        self.next_order += len(keys)
        texts = [f"{key or '-'} {first + row}" for row, key in enumerate(keys)]
        self.sent += texts
        self.calls += 1
        bulk = Bulk([text.encode() for text in texts], keys, None, None, "t", self.outcomes.append)
        router = self.state.router(first)
        if router is None:
            self.one_by_one += 1
            for row in range(len(keys)):
                track, effects = self.state.append(bulk.record(row, first, first, 0, FOREVER))
                if track is not None:
                    self.perform([On(track, effects)])
            return
        parts = bulk.parts(router, EntryFormat("p"), Batching(max_messages=entry_rows), first, first, 0, FOREVER)
        assert parts is not None
        for part in parts:
            self.perform([On(part.track, part.track.lane.append_entries(part.entries))])

    def _on(self, track: SegmentLane, effects: Sequence[Effect]) -> None:
        super()._on(track, effects)
        for effect in effects:
            if not isinstance(effect, Stored):
                continue
            if isinstance(effect.records, BulkEntry):
                effect.records.stored(track.segment.segment_id, effect.ledger, effect.position)
                continue
            for record in effect.records:
                if record.ticket is not None:
                    record.ticket.set_result(MessageId("t", effect.ledger, effect.position))

    def check(self, *, is_exact: bool | None = None) -> None:
        super().check(is_exact=is_exact)
        assert len(self.outcomes) == self.calls
        for sent in self.outcomes:
            assert isinstance(sent, Sent)
            assert all(isinstance(one, MessageId) for one in sent)


def run(seed: int, *, is_ours: bool, steps: int) -> BulkWorld:
    chance = random.Random(seed)
    world = BulkWorld(chance, is_ours=is_ours)
    for _ in range(steps):
        if chance.random() < 0.12:
            keys = [chance.choice([*KEYS, None]) for _ in range(chance.randint(1, 9))]
            world.send_bulk(keys, chance.randint(1, 5))
        step(world, chance)
    world.settle()
    world.check()
    return world


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "foreign"])
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.sampled_from([60, 200]))
def test_keys_stay_in_order_and_every_call_has_one_outcome(is_ours: bool, seed: int, steps: int) -> None:
    run(seed, is_ours=is_ours, steps=steps)


def test_most_calls_are_routed_at_once() -> None:
    worlds = [run(seed, is_ours=True, steps=200) for seed in range(20)]
    assert sum(world.one_by_one for world in worlds) * 2 < sum(world.calls for world in worlds)
