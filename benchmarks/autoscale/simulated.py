"""Days of automatic scaling on a virtual clock: the evaluator alone, and the real controller of a topic.

Expected before measuring: a day that rises and falls tenfold needs 7 splits from one segment to eight, and as
many merges; bursts add a few; the topic is too hot from a crossing until its last split, at one per minute.
"""

from __future__ import annotations

import asyncio

from anabranch.controller.interface import Registration, Start, SubscriptionKind
from anabranch.model.autoscale.policy import AutoScalePolicy
from anabranch.model.autoscale.scenarios import DAY_SECONDS, SCENARIOS
from anabranch.model.autoscale.simulation import SimulatedTopic
from benchmarks.support.measure import Outcome, Scene, Series, at_most
from tests.support.in_memory.controllers import TOPIC, Brokers, Link
from tests.support.in_memory.segment_loads import SegmentLoads
from tests.support.in_memory.simulated_loop import run_simulated

CONSUMERS = 8


def day(scene: Scene) -> list[Outcome]:
    tick_seconds = scene.size(10, 20)
    topic = SimulatedTopic(AutoScalePolicy(), tick_seconds=tick_seconds)
    for traffic in SCENARIOS["bursts"].traffic(tick_seconds):
        topic.tick(traffic)
    found = topic.outcome()
    share = 100 * found.seconds_above / DAY_SECONDS
    notes = {"splits": found.splits, "merges": found.merges, "most segments": found.segments_most}
    return [
        Outcome(
            "day", "simulated day, 10× curve and bursts: changes",
            Series("changes", "changes", (float(found.changes),)), None, at_most(60), notes,
        ),
        Outcome(
            "day-above", "… share of the day above a split threshold", Series("above", "%", (share,)), None, at_most(1)
        ),
    ]  # fmt: skip


def idle(scene: Scene) -> list[Outcome]:
    """The real shells of a broker's controllers; segments in memory, which report themselves as idle."""
    hours = scene.size(24, 2)

    async def story() -> tuple[int, int, int]:
        async with Brokers("a", auto_scale_enabled=True) as brokers:
            leader = brokers.controllers["a"]
            await leader.create(TOPIC, 1, {})
            for number in range(CONSUMERS):
                request = Registration("s", SubscriptionKind.STREAM, f"c{number}", Start.EARLIEST)
                await leader.register(TOPIC, request, Link())
            loads = SegmentLoads(brokers, brokers.settings.auto_scale_policy, brokers.record)
            reporting = asyncio.ensure_future(loads.run(10.0))
            await asyncio.sleep(900)
            converged = _state(brokers)
            assert loads.written >= CONSUMERS, "segments are known to be idle"
            await asyncio.sleep(hours * 3600)
            after = _state(brokers)
            reporting.cancel()
            return converged[1], after[0] - converged[0], after[1]

    segments, changes, after = run_simulated(story())
    assert segments == after == CONSUMERS, f"{segments} and {after} segments for {CONSUMERS} consumers"
    return [
        Outcome(
            "idle", f"idle topic, {CONSUMERS} stream consumers, {hours} simulated hours: changes after convergence",
            Series("changes", "changes", (float(changes),)), None, at_most(0),
        )
    ]  # fmt: skip


def _state(brokers: Brokers) -> tuple[int, int]:
    """Epoch and number of active segments."""
    record = brokers.record()
    assert record is not None
    return record.epoch, len(record.layout.active)
