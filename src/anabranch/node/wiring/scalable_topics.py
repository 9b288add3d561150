"""Placement changes for the controllers of scalable topics, and crash points for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.controller.service import ScalableTopicService
from anabranch.controller.topic.topic_controller import Step, no_step
from anabranch.model.names import TopicName

if TYPE_CHECKING:
    from anabranch.cluster.cluster import Cluster

DIE_AT = "ANABRANCH_TEST_DIE_AT"
"""For tests: the path of a file that names a step (`before-commit`, or `after-create:2` for its second occurrence). The
process that reaches the step deletes the file and kills itself with SIGKILL. With the prefix `stop ` it stops itself
with SIGSTOP instead."""

LOOK_SECONDS = 0.5


async def follow_placement(cluster: Cluster, service: ScalableTopicService) -> None:
    """Runs for ever: notifies the controllers when this broker gains or loses names, or when addresses change."""
    served: frozenset[tuple[int, int]] = frozenset()  # slot and ownership epoch
    seen: object = None
    while True:
        looked, slots = cluster.changes, cluster.table.slots
        now = frozenset((slot, slots[slot].epoch) for slot in cluster.serving) if cluster.is_valid else frozenset()
        facts = now, cluster.table.slots, frozenset(info.broker_incarnation for info in cluster.brokers.values())
        if facts != seen:
            service.placement_changed(has_gained=bool(now - served))
            served, seen = now, facts
        await cluster.wait_changed(looked, LOOK_SECONDS)


def step_of(environment: Mapping[str, str]) -> Step:
    """The function that controllers call at each step; it does nothing unless a test has set DIE_AT."""
    where = environment.get(DIE_AT, "")
    if not where:
        return no_step
    wanted, counted = Path(where), dict[str, int]()

    def step(name: str, topic: TopicName) -> None:
        try:
            text = wanted.read_text().strip()
        except FileNotFoundError:
            counted.clear()
            return
        counted[name] = counted.get(name, 0) + 1
        step_name, _, number = text.removeprefix("stop ").partition(":")
        if name == step_name and counted[name] == int(number or 1):
            wanted.unlink()
            os.kill(os.getpid(), signal.SIGSTOP if text.startswith("stop ") else signal.SIGKILL)

    return step
