"""What makes auto-scaling evaluate a topic, how soon, and what it costs. Real leaders, simulated time.

Load reports are written by the test, as the owners of segments write them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from anabranch.controller.autoscale.scaling_records import history_key
from anabranch.controller.events import NotLeading
from anabranch.controller.interface import ConsumerRegistration, Registration, Start, SubscriptionKind
from anabranch.controller.records.keys import pending_key
from anabranch.controller.segment_host import LoadReported, SegmentRef
from anabranch.controller.service import ScalableTopicService
from anabranch.metadata.interface import ANY, StoreUnavailable, Versioned
from anabranch.model.autoscale.history import decode_history
from anabranch.model.autoscale.load import Rates, SegmentLoad, encode_load
from anabranch.model.metadata_keys import scalable_topic_key, segment_load_key
from anabranch.model.segment import backing_topic
from tests.support.in_memory.controllers import TOPIC, Brokers, Link
from tests.support.in_memory.simulated_loop import run_simulated

HOUR = 3600.0
SOON = 0.1
"""Seconds within which an event is evaluated; each write of the store takes up to 4 ms here."""


def scaled(*names: str, **settings: Any) -> Brokers:
    return Brokers(*names, auto_scale_enabled=True, **settings)


def evaluations(broker: ScalableTopicService) -> int:
    return broker.scaling_totals.decisions.total()


async def joined(broker: ScalableTopicService, name: str) -> ConsumerRegistration:
    request = Registration("s", SubscriptionKind.STREAM, name, Start.EARLIEST)
    return (await broker.register(TOPIC, request, Link()))[1]


async def reported(brokers: Brokers, rates: Rates, *, to: str | None = "a") -> None:
    """Each active segment has these rates. `to`: the broker that is told; None: the event is lost."""
    record, now_ms = brokers.record(), brokers.clock.now_ms()
    assert record is not None
    hot, cold = rates.msg_rate_in > 10_000, rates.msg_rate_in < 1_000
    load = SegmentLoad(rates=rates, reported_at_ms=now_ms)
    load = replace(load, above_split_since_ms=now_ms if hot else None, below_merge_since_ms=now_ms if cold else None)
    for segment in record.layout.active:
        await brokers.store.put(segment_load_key(TOPIC, segment.segment_id), encode_load(load), expected=ANY)
        if to is not None:
            ref = SegmentRef(backing_topic(TOPIC, segment), record.incarnation, segment.segment_id)
            brokers.controllers[to].on_segment_event(LoadReported(ref, load))


def active(brokers: Brokers) -> int:
    record = brokers.record()
    return 0 if record is None else len(record.layout.active)


def test_consumer_that_registers_is_evaluated_within_100_ms() -> None:
    async def story() -> None:
        async with scaled("a") as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await joined(a, "c1")
            await joined(a, "c2")
            await brokers.until(lambda: a.scaling_totals.decisions["split", "consumer-count"] == 1, SOON)
            await brokers.until(lambda: active(brokers) == 2, 1.0)

    run_simulated(story())


def test_consumer_that_leaves_is_evaluated_within_100_ms() -> None:
    async def story() -> None:
        async with scaled("a") as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 2, {})
            _, second = await joined(a, "c1"), await joined(a, "c2")
            await reported(brokers, Rates())
            await brokers.until(lambda: a.scaling_totals.suppressed["merge", "consumer-demand"] > 0)
            before = a.scaling_totals.suppressed["merge", "merge-window"]
            await second.leave()
            await brokers.until(lambda: a.scaling_totals.suppressed["merge", "merge-window"] > before, SOON)
            await brokers.until(lambda: active(brokers) == 1, 301.0)

    run_simulated(story())


def test_report_of_a_hot_segment_makes_a_broker_lead_its_topic_and_split() -> None:
    async def story() -> None:
        async with scaled("a", idle_seconds=5.0, sweep_seconds=5.0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await brokers.until(lambda: len(a.controllers) == 0)
            await reported(brokers, Rates(20_000))
            await brokers.until(lambda: active(brokers) == 2, 1.0)
            await brokers.until(lambda: a.scaling_totals.reactions == 1, SOON)
            assert 0 < a.scaling_totals.reaction_ms < 1_000

    run_simulated(story())


@pytest.mark.parametrize("slow", ["/autoscale", "/controllers/wanted/"])
def test_report_that_arrives_while_the_last_evaluation_is_stored_is_evaluated(slow: str) -> None:
    """It was not, until the next report or tick: the threshold was crossed for 10 s and more."""

    async def story() -> None:
        async with scaled("a", auto_scale_interval_seconds=600.0) as brokers:
            a, writes = brokers.controllers["a"], list[str]()
            await a.create(TOPIC, 2, {})
            await a.activate(TOPIC)
            await brokers.clock.sleep(5)

            def fate(what: str) -> str:
                if slow not in what:
                    return ""
                writes.append(what)
                return "slow"

            brokers.faults.fate = fate
            await reported(brokers, Rates())  # cold: merged when the window is over, which is marked in the store
            await brokers.until(lambda: bool(writes))
            await reported(brokers, Rates(20_000))
            await brokers.until(lambda: active(brokers) == 3, 5.0)

    run_simulated(story())


def test_evaluation_that_the_store_refused_is_tried_again_soon() -> None:
    """It waited for the next tick."""

    async def story() -> None:
        async with scaled("a", auto_scale_interval_seconds=600.0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await a.activate(TOPIC)
            await brokers.clock.sleep(5)
            scan, failures = brokers.store.scan, count(1)

            def failing(prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
                if prefix.endswith("/segments") and next(failures) <= 3:
                    raise StoreUnavailable("away for a moment")
                return scan(prefix)

            brokers.store.scan = failing  # type: ignore[method-assign]  # reads are not disturbed otherwise
            leader = a.controllers.leading(TOPIC)
            assert leader is not None
            assert leader.scaler is not None
            await reported(brokers, Rates(20_000))
            leader.scaler.reload()
            await brokers.until(lambda: active(brokers) == 2, 10.0)
            assert next(failures) > 3

    run_simulated(story())


def test_growth_goes_on_while_its_decisions_cannot_be_stored() -> None:
    async def story() -> None:
        async with scaled("a", auto_scale_interval_seconds=600.0, split_cooldown_seconds=0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            brokers.faults.fate = lambda what: "refused" if what.endswith("/autoscale") else ""
            for number in range(4):
                await joined(a, f"c{number}")
            await brokers.until(lambda: active(brokers) == 4, 5.0)
            brokers.faults.fate = None
            await brokers.until(lambda: brokers.bare.data.get(history_key(TOPIC)) is not None, 15.0)
            found = brokers.bare.data.get(history_key(TOPIC))
            assert found is not None
            past = [one for one in decode_history(found.value).decisions if one.decision.action is not None]
            assert [one.outcome for one in past] == ["committed"] * 3

    run_simulated(story())


def test_lost_report_of_a_hot_segment_is_found_at_the_next_tick() -> None:
    async def story() -> None:
        async with scaled("a", split_cooldown_seconds=0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await joined(a, "c1")
            await reported(brokers, Rates(5_000))
            await reported(brokers, Rates(20_000), to=None)
            await brokers.until(lambda: active(brokers) == 2, 61.0)

    run_simulated(story())


def test_cold_topic_that_is_not_led_is_merged_when_its_merge_window_ends() -> None:
    async def story() -> None:
        async with scaled("a", idle_seconds=5.0, sweep_seconds=5.0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 2, {})
            await brokers.until(lambda: len(a.controllers) == 0)
            await reported(brokers, Rates(1.0))
            await brokers.until(lambda: brokers.bare.data.get(pending_key(TOPIC)) is not None, 1.0)
            await brokers.clock.sleep(290)
            assert (active(brokers), len(a.controllers)) == (2, 0), "nothing leads it while it waits"
            await brokers.until(lambda: active(brokers) == 1, 30.0)
            await brokers.until(lambda: len(a.controllers) == 0, 600.0)

    run_simulated(story())


def test_merge_window_goes_on_at_the_next_leader_after_a_crash() -> None:
    async def story() -> None:
        async with scaled("a", "b", idle_seconds=600.0, sweep_seconds=5.0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 2, {})
            await reported(brokers, Rates(1.0))
            await brokers.until(lambda: a.scaling_totals.suppressed["merge", "merge-window"] > 0)
            await brokers.clock.sleep(100)
            await brokers.kill("a")
            brokers.lead("b")
            await brokers.until(lambda: active(brokers) == 1, 210.0)

    run_simulated(story())


class Reads:
    """Counts reads of the topic's keys from now on."""

    def __init__(self, brokers: Brokers) -> None:
        self.of_topic = 0
        get, scan, topic = brokers.bare.get, brokers.bare.scan, scalable_topic_key(TOPIC)

        async def counted_get(key: str) -> Versioned | None:
            self.of_topic += key.startswith(topic)
            return await get(key)

        def counted_scan(prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
            self.of_topic += prefix.startswith(topic)
            return scan(prefix)

        brokers.bare.get = counted_get  # type: ignore[method-assign]  # counts
        brokers.bare.scan = counted_scan  # type: ignore[method-assign]  # counts


def test_idle_topic_at_its_floor_has_no_task_timer_read_or_evaluation_for_a_day() -> None:
    async def story() -> None:
        async with scaled("a", idle_seconds=5.0, sweep_seconds=60.0) as brokers:
            a = brokers.controllers["a"]
            tasks = len(asyncio.all_tasks())
            await a.create(TOPIC, 1, {})
            await reported(brokers, Rates())
            await brokers.until(lambda: len(a.controllers) == 0)
            reads, before = Reads(brokers), evaluations(a)
            await brokers.clock.sleep(24 * HOUR)
            assert (reads.of_topic, evaluations(a) - before) == (0, 0)
            assert len(asyncio.all_tasks()) == tasks
            assert brokers.bare.data.get(pending_key(TOPIC)) is None

    run_simulated(story())


def test_idle_topic_with_a_consumer_for_each_segment_is_not_evaluated_by_the_tick() -> None:
    async def story() -> None:
        async with scaled("a", sweep_seconds=60.0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 2, {})
            for name in ("c1", "c2"):
                await joined(a, name)
            await reported(brokers, Rates())
            await brokers.clock.sleep(180)  # the first tick meets the namespace for the first time
            reads, before = Reads(brokers), evaluations(a)
            await brokers.clock.sleep(24 * HOUR)
            assert (reads.of_topic, evaluations(a) - before, active(brokers)) == (0, 0, 2)
            brokers.rules.policy = {"minSegments": 4}
            await brokers.until(lambda: evaluations(a) > before, 61.0)

    run_simulated(story())


def test_manual_split_starts_the_cooldown_of_automatic_ones() -> None:
    async def story() -> None:
        async with scaled("a", split_cooldown_seconds=60) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await a.split(TOPIC, 0)
            await reported(brokers, Rates(20_000))
            await brokers.until(lambda: a.scaling_totals.suppressed["split", "cooldown"] > 0, SOON)
            await brokers.clock.sleep(50)
            assert active(brokers) == 2
            await brokers.until(lambda: active(brokers) == 3, 20.0)

    run_simulated(story())


def test_cooldown_and_decisions_go_on_at_the_next_leader() -> None:
    async def story() -> None:
        async with scaled("a", "b") as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await reported(brokers, Rates(20_000))
            await brokers.until(lambda: active(brokers) == 2)
            await reported(brokers, Rates(20_000))
            await brokers.clock.sleep(20)
            await brokers.kill("a")
            b = brokers.lead("b")
            while True:
                try:
                    status = await b.auto_scale_status(TOPIC)
                    break
                except NotLeading:
                    await brokers.clock.sleep(0.1)
            (split,) = (one for one in status["decisions"] if one["action"] == "split")
            assert (split["reason"], split["outcome"]) == ("msg-rate-in", "committed")
            assert [one["suppressedBy"] for one in status["now"]["suppressed"]] == ["cooldown"]
            await brokers.clock.sleep(30)
            assert active(brokers) == 2
            await brokers.until(lambda: active(brokers) == 3, 30.0)

    run_simulated(story())


def test_failed_split_is_paused_and_starts_no_cooldown() -> None:
    async def story() -> None:
        async with scaled("a", create_seconds=2.0, split_cooldown_seconds=600) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            brokers.faults.fate = lambda what: "refused" if what.startswith("Create ") else ""
            tried = list[float]()
            brokers.faults.before = lambda what: tried.append(brokers.clock.monotonic()) if what == "Create 1" else None
            await reported(brokers, Rates(20_000))
            await brokers.until(lambda: a.scaling_totals.suppressed["split", "recent-failure"] > 0, 20.0)
            failed_at = brokers.clock.monotonic()
            record = brokers.record()
            assert record is not None
            assert (len(record.layout.active), record.last_split_at_ms) == (1, -1)
            await brokers.clock.sleep(25)
            assert max(tried) <= failed_at, "no attempt in the pause"
            brokers.faults.fate = None
            await brokers.until(lambda: active(brokers) == 2, 10.0)

    run_simulated(story())
