"""SUBSCRIBEs that wait for a cursor end with the cursor, the refusal, or the close of the topic."""

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


async def test_waiting_requests_continue_when_the_cursor_is_created() -> None:
    scene = Scene()
    tasks = await scene.begun("s", "s")
    scene.cursors.add("s")
    scene.awaited.made("s")
    assert await asyncio.gather(*tasks) == [True, True]
    assert not scene.awaited._answers


async def test_existing_cursor_is_not_requested() -> None:
    scene = Scene()
    scene.cursors.add("s")
    assert await scene.waiting("s") and scene.asked == []


async def test_refusal_reaches_waiting_requests_only() -> None:
    scene = Scene()
    scene.awaited.denied("s", "no request waits yet")
    (task,) = await scene.begun("s")
    scene.awaited.denied("s", "too many")
    with pytest.raises(NotAllowed, match="too many"):
        await task
    task = scene.waiting("s")
    scene.cursors.add("s")
    scene.awaited.made("s")
    assert await task


async def test_wait_for_a_cursor_times_out() -> None:
    scene = Scene()
    (task,) = await scene.begun("s")
    scene.clock.advance(REGISTRY_SECONDS)
    scene.awaited.look_again()
    assert await task is False
    assert not scene.awaited._answers


async def test_waiting_request_fails_when_the_topic_closes() -> None:
    scene = Scene()
    (task,) = await scene.begun("s")
    scene.is_open = False
    scene.awaited.look_again()
    with pytest.raises(TopicFenced):
        await task
