"""A producer's state under random traffic, splits and merges, lost connections and layouts that arrive in any order.

A failure prints its seed; `run(seed, …)` repeats it."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.models.producer_model import KEYS, ProducerWorld

WEIGHTS = {
    "send": 30,
    "ask": 8,
    "serve": 14,
    "receive": 14,
    "cut": 2,
    "flush": 4,
    "split": 1,
    "merge": 1,
    "seal": 2,
    "commit": 2,
    "show": 2,
    "plan": 2,
}


def step(world: ProducerWorld, chance: random.Random) -> None:
    (name,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
    track = chance.choice(list(world.lines))
    active = [one.segment_id for one in world.layout.active]
    match name:
        case "send":
            world.send(chance.choice(KEYS) if chance.random() < 0.9 else None)
        case "ask":
            world.ask(track)
        case "serve":
            world.serve(track, chance.randint(1, 4))
        case "receive":
            world.receive(track, chance.randint(1, 4))
        case "cut":
            world.cut(track)
        case "flush":
            world.flush()
        case "show":
            world.show(max(0, len(world.epochs) - chance.randint(1, 3)))
        case "plan":
            world.show(plan=True)
        case "split" if world.plan is None and len(active) < 8:
            world.split(chance.choice(active), chance.choice((2, 2, 3)))
        case "merge" if world.plan is None and len(active) > 1:
            first = chance.randrange(len(active) - 1)
            world.merge(*active[first : first + chance.choice((2, 2, 3))])
        case "seal" if world.plan is not None:
            world.seal(chance.choice(world.plan.parent_ids))
        case "commit" if world.plan is not None:
            world.commit()


def run(seed: int, *, is_ours: bool = True, steps: int = 400, buckets: int = 1) -> ProducerWorld:
    chance = random.Random(seed)
    segments, batch = chance.randint(1, 3), chance.randint(1, 4) * (2 if buckets > 1 else 1)
    window = chance.choice((1, 300, 1 << 20)) if buckets > 1 else 1 << 20  # parts of a batch may be in flight alone
    world = ProducerWorld(segments=segments, batch=batch, is_ours=is_ours, buckets=buckets * segments, window=window)
    for _ in range(steps):
        step(world, chance)
    world.settle()
    world.check()
    return world


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "foreign"])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.sampled_from([60, 200, 400]))
def test_keys_stay_in_order_and_nothing_is_lost(is_ours: bool, seed: int, steps: int) -> None:
    run(seed, is_ours=is_ours, steps=steps)


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "foreign"])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.sampled_from([60, 200, 400]), buckets=st.sampled_from([2, 4, 16]))
def test_one_batch_per_bucket_keeps_all_of_that(is_ours: bool, seed: int, steps: int, buckets: int) -> None:
    run(seed, is_ours=is_ours, steps=steps, buckets=buckets)


@pytest.mark.parametrize("seed", [64, 77, 89])
def test_seeds_of_past_failures_with_buckets_pass(seed: int) -> None:
    for steps, is_ours, buckets in product((200, 300, 800), (True, False), (3, 16)):
        run(seed, is_ours=is_ours, steps=steps, buckets=buckets)


@pytest.mark.parametrize("seed", [138, 238, 250, 723, 1019, 1191, 10016])
def test_seeds_of_past_failures_pass(seed: int) -> None:
    for steps, is_ours in product((60, 200, 400, 800), (True, False)):
        run(seed, is_ours=is_ours, steps=steps)
