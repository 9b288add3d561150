"""Changes are counted: no waiter misses one, whatever the others wait for."""

from __future__ import annotations

import asyncio

from anabranch.runtime.changes import Changes


async def test_change_between_check_and_wait_is_not_missed() -> None:
    changes = Changes()
    looked = changes.count
    changes.happened()
    async with asyncio.timeout(5):
        await changes.wait(looked)


async def test_all_waiters_wake_for_each_change() -> None:
    changes, woken = Changes(), list[int]()

    async def follow(number: int) -> None:
        for _ in range(3):
            looked = changes.count
            await changes.wait(looked)
            woken.append(number)

    tasks = [asyncio.create_task(follow(number)) for number in range(4)]
    for _ in range(3):
        for _ in range(5):  # all wait again
            await asyncio.sleep(0)
        changes.happened()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)
    assert sorted(woken) == sorted([0, 1, 2, 3] * 3)
