"""Where scalable topics and this broker meet: which names are ours, and the steps at which a test may end the process.
Wiring, no decisions."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from anabranch.cluster.cluster import Cluster
from anabranch.controller.leader import Step, no_step
from anabranch.controller.service import ScalableService
from anabranch.model.names import TopicName

DIE_AT = "ANABRANCH_TEST_DIE_AT"
"""For tests: `step` or `step:n`; the process is killed, as by kill -9, when it reaches that step the n-th time."""

LOOK_SECONDS = 0.5


async def follow_placement(cluster: Cluster, service: ScalableService) -> None:
    """For ever: tell the controllers when names come to this broker or leave it, and watchers when addresses change."""
    served: frozenset[int] = frozenset()
    seen: object = None
    while True:
        now = cluster.serving if cluster.is_valid else frozenset()
        facts = now, cluster.table.slots, frozenset(card.seat for card in cluster.cards.values())
        if facts != seen:
            service.placement_changed(has_gained=bool(now - served))
            served, seen = now, facts
        await cluster.wait_changed(LOOK_SECONDS)


def step_of(environment: Mapping[str, str]) -> Step:
    """What is told of the controllers' steps: nobody, unless a test has named one."""
    wanted, _, number = environment.get(DIE_AT, "").partition(":")
    if not wanted:
        return no_step
    remaining = int(number or 1)

    def step(name: str, topic: TopicName) -> None:
        nonlocal remaining
        if name == wanted:
            remaining -= 1
            if not remaining:
                os.kill(os.getpid(), signal.SIGKILL)

    return step
