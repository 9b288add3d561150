"""A process with a metadata store, for tests that kill, pause and race such processes.

Run as `python -m tests.support.processes.metadata_session_child` with

    URL live NAME TTL_MS     holds three ephemeral keys below /live/NAME
    URL count TIMES          increments /count this many times, by compare-and-set

It prints one word per line: `ready` (and the granted ttl), `lost`, `done`.
"""

from __future__ import annotations

import asyncio
import sys

from anabranch.metadata.interface import ABSENT, MetadataStore, SessionLost, VersionMismatch
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock


def say(*words: object) -> None:
    print(*words, flush=True)


async def live(store: MetadataStore, name: str, ttl_ms: int) -> None:
    session = await store.open_session(ttl_ms)
    for number in range(3):
        await store.put(f"/live/{name}/{number}", b"", expected=ABSENT, session=session)
    say("ready", session.ttl_ms)
    await session.wait_lost()
    try:
        await store.put(f"/live/{name}/again", b"", expected=ABSENT, session=session)
    except SessionLost:
        say("lost")


async def count(store: MetadataStore, times: int) -> None:
    while times:
        found = await store.get("/count")
        assert found is not None
        try:
            await store.put("/count", str(int(found.value) + 1).encode(), expected=found.version)
        except VersionMismatch:
            continue
        times -= 1
    say("done")


async def main(url: str, what: str, *rest: str) -> None:
    async with open_store(url, SystemClock()) as store:
        if what == "live":
            await live(store, rest[0], int(rest[1]))
        else:
            await count(store, int(rest[0]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
