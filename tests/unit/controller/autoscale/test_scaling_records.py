"""Past decisions in the metadata store, written by two leaders of one topic of which one is deposed."""

from __future__ import annotations

from anabranch.controller.autoscale.scaling_records import ScalingRecords, history_key
from anabranch.metadata.interface import ANY
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.autoscale.decision import Decision, Reason, Split
from anabranch.model.autoscale.history import History
from anabranch.model.names import TopicName
from anabranch.runtime.clock import SystemClock

TOPIC = TopicName.parse("topic://public/default/orders")


def decided(history: History, at_ms: int) -> History:
    return history.with_decision(Decision(Split(0, (at_ms,)), Reason.MSG_RATE_IN), at_ms, 0)


def times(history: History) -> list[int]:
    return [one.at_ms for one in history.decisions]


async def test_leader_joins_the_decisions_that_another_one_has_stored_meanwhile() -> None:
    async with MemoryStore(SystemClock()) as store:
        records = ScalingRecords(store)
        nothing, absent = await records.history(TOPIC)
        first, version = await records.save_history(TOPIC, decided(nothing, 1), absent)
        await records.save_history(TOPIC, decided(first, 2), version)  # the next leader
        kept, version = await records.save_history(TOPIC, decided(first, 3), version)  # the deposed one, late
        assert times(kept) == [1, 2, 3]
        assert times((await records.history(TOPIC))[0]) == [1, 2, 3]
        again, _ = await records.save_history(TOPIC, decided(kept, 4), version)
        assert times(again) == [1, 2, 3, 4]


async def test_record_that_cannot_be_read_is_replaced() -> None:
    async with MemoryStore(SystemClock()) as store:
        records = ScalingRecords(store)
        await store.put(history_key(TOPIC), b"?", expected=ANY)
        nothing, version = await records.history(TOPIC)
        assert nothing == History()
        await records.save_history(TOPIC, decided(nothing, 1), version)
        assert times((await records.history(TOPIC))[0]) == [1]
