"""Auto-scaling across a change of leader, and by a leader whose layout is old. On a virtual clock, with real shells."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from anabranch.controller.autoscale.scaling_records import history_key
from anabranch.controller.interface import Registration, Start, SubscriptionKind
from anabranch.metadata.interface import ANY, Change
from anabranch.model.autoscale.history import decode_history
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


def cooling(brokers: Brokers) -> list[str]:
    """Reasons and rules of the stored decisions, oldest first, as any broker that leads the topic shows them."""
    found = brokers.bare.data.get(history_key(TOPIC))
    assert found is not None
    return [
        "split" if one.decision.action is not None else ",".join(one.decision.suppressed_by) or one.decision.reason
        for one in decode_history(found.value).decisions
    ]


def test_decisions_without_an_action_survive_a_leader_that_is_killed() -> None:
    async def story() -> None:
        async with Brokers("a", "b", **(NO_PAUSE | {"split_cooldown_seconds": 600})) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            for name in ("one", "two"):
                await a.register(TOPIC, wish(name), Link())
            await asyncio.sleep(3)
            await a.register(TOPIC, wish("three"), Link())
            await asyncio.sleep(3)
            decided = cooling(brokers)
            assert decided[-1].startswith("cooldown")
            assert "split" in decided[:-1]
            await brokers.kill("a")
            b = brokers.lead("b")
            shown = (await b.auto_scale_status(TOPIC))["decisions"]
            assert len(shown) >= len(decided)
            assert cooling(brokers)[: len(decided)] == decided

    run_simulated(story())


def test_decisions_of_a_burst_of_events_are_written_about_once_a_second() -> None:
    async def story() -> None:
        async with Brokers("a", **(NO_PAUSE | {"max_segments": 2})) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 2, {})
            await a.activate(TOPIC)
            await asyncio.sleep(3)
            writes = 0

            def count(changes: Sequence[Change]) -> None:
                nonlocal writes
                writes += sum(one.key == history_key(TOPIC) for one in changes)

            brokers.bare.data.listen(count)
            for number in range(40):  # each of them changes what is suppressed
                _, link = await a.register(TOPIC, wish(f"{number}"), Link())
                _, other = await a.register(TOPIC, wish(f"{number}-"), Link())
                _, third = await a.register(TOPIC, wish(f"{number}--"), Link())
                await asyncio.sleep(0.05)
                for one in (link, other, third):
                    await one.leave()
                await asyncio.sleep(0.05)
            assert 2 <= writes <= 8
            await asyncio.sleep(2)
            writes = 0
            await asyncio.sleep(300)
            assert writes == 0, "what is decided again and again is written once"

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
    """The leader hears about new reports, and may miss one."""

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
