"""Cursors that the registry has not made yet: who waits hears of the cursor, of the refusal, or of the end."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.errors import TopicFenced
from anabranch.broker.segment.pending_cursors import REGISTRY_SECONDS, PendingCursors
from anabranch.model.errors import NotAllowed
from tests.support.in_memory.topic_log import ManualClock


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.awaited = PendingCursors(self.clock)
        self.cursors: set[str] = set()
        self.asked: list[str] = []
        self.is_open = True

    def waiting(self, name: str) -> asyncio.Task[bool]:
        def ask() -> None:
            if not self.is_open:
                raise TopicFenced("closing")
            self.asked.append(name)

        return asyncio.create_task(self.awaited.wait(name, is_there=lambda: name in self.cursors, ask=ask))

    async def begun(self, *names: str) -> list[asyncio.Task[bool]]:
        tasks = [self.waiting(name) for name in names]
        await asyncio.sleep(0)  # each asks at once and waits
        assert self.asked[-len(names) :] == list(names)
        return tasks


async def test_all_who_wait_for_it_go_on_when_it_is_made() -> None:
    scene = Scene()
    tasks = await scene.begun("s", "s")
    scene.cursors.add("s")
    scene.awaited.made("s")
    assert await asyncio.gather(*tasks) == [True, True]
    assert not scene.awaited._answers


async def test_one_that_is_there_is_not_asked_for() -> None:
    scene = Scene()
    scene.cursors.add("s")
    assert await scene.waiting("s") and scene.asked == []


async def test_a_refusal_is_told_to_those_who_wait_and_not_to_the_next() -> None:
    scene = Scene()
    scene.awaited.denied("s", "nobody waits yet")
    (task,) = await scene.begun("s")
    scene.awaited.denied("s", "too many")
    with pytest.raises(NotAllowed, match="too many"):
        await task
    task = scene.waiting("s")
    scene.cursors.add("s")
    scene.awaited.made("s")
    assert await task


async def test_the_patience_ends() -> None:
    scene = Scene()
    (task,) = await scene.begun("s")
    scene.clock.advance(REGISTRY_SECONDS)
    scene.awaited.look_again()
    assert await task is False
    assert not scene.awaited._answers


async def test_who_waits_at_a_topic_that_closes_hears_so() -> None:
    scene = Scene()
    (task,) = await scene.begun("s")
    scene.is_open = False
    scene.awaited.look_again()
    with pytest.raises(TopicFenced):
        await task
