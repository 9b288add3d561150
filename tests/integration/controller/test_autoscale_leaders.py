"""Auto-scaling across a change of leader, and by a leader whose layout is old. On a virtual clock, with real shells."""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch.controller.interface import Registration, Start, SubscriptionKind
from anabranch.metadata.interface import ANY
from anabranch.model.autoscale.load import Rates, SegmentLoad, encode_load, sampled
from anabranch.model.metadata_keys import segment_load_key
from tests.support.in_memory.controllers import TOPIC, Brokers, Link
from tests.support.in_memory.segment_loads import SegmentLoads
from tests.support.in_memory.simulated_loop import run_simulated

NO_PAUSE: dict[str, Any] = {"auto_scale_enabled": True, "split_cooldown_seconds": 0, "merge_cooldown_seconds": 0}


def wish(consumer: str) -> Registration:
    return Registration("s", SubscriptionKind.STREAM, consumer, Start.EARLIEST)


COLD: dict[str, Any] = {"merge_window_seconds": 1, **NO_PAUSE}


def test_new_leader_waits_for_the_consumers_of_the_last_one() -> None:
    """Without them both segments are superfluous: they would be merged, and split again a moment later."""

    async def story() -> None:
        async with Brokers("a", "b", **COLD) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 2, {})
            for name in ("one", "two"):
                await a.register(TOPIC, wish(name), Link())
            loads = SegmentLoads(brokers, brokers.settings.auto_scale_policy, brokers.record)
            for _ in range(70):
                await asyncio.sleep(1)
                await loads.look()
            assert loads.written >= 2, "both segments are known to be cold"
            for _ in range(5):
                await brokers.kill("a")
                brokers.lead("b")
                await asyncio.sleep(2)
                await brokers.start("a")
                await brokers.kill("b")
                brokers.lead("a")
                await asyncio.sleep(2)
                await brokers.start("b")
            record = brokers.record()
            assert record is not None
            assert record.epoch == 0
            assert len(record.layout.active) == 2

    run_simulated(story())


def test_leader_with_an_old_layout_leaves_the_reports_of_newer_segments_alone() -> None:
    async def story() -> None:
        async with Brokers("a", "b", **(NO_PAUSE | {"auto_scale_interval_seconds": 5.0})) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await a.activate(TOPIC)
            await asyncio.sleep(1)
            brokers.places["a"].believes = True  # it stands still while another broker leads
            b = brokers.lead("b")
            await b.split(TOPIC, 0)
            loads = SegmentLoads(brokers, brokers.settings.auto_scale_policy, brokers.record)
            await loads.look()
            await asyncio.sleep(20)  # a ticks, and reads all reports of the topic
            assert sorted(await b.records.scaling.loads(TOPIC)) == [1, 2]

    run_simulated(story())


def test_segments_are_not_merged_by_a_report_that_is_no_longer_the_stored_one() -> None:
    """The leader is told of new reports, and may miss one."""

    async def story() -> None:
        async with Brokers(
            "a", **(COLD | {"merge_window_seconds": 10, "auto_scale_interval_seconds": 60.0})
        ) as brokers:
            a, policy = brokers.controllers["a"], brokers.settings.auto_scale_policy
            await a.create(TOPIC, 2, {})
            await a.activate(TOPIC)
            await SegmentLoads(brokers, policy, brokers.record).look()
            busy = sampled(None, SegmentLoad(rates=Rates(msg_rate_in=5_000.0)), policy, brokers.clock.now_ms())
            for number in (0, 1):
                await brokers.store.put(segment_load_key(TOPIC, number), encode_load(busy), expected=ANY)
            await asyncio.sleep(30)
            record = brokers.record()
            assert record is not None
            assert record.epoch == 0

    run_simulated(story())
