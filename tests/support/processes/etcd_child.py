"""A process that holds a session on etcd until it is killed.

Run as `python -m tests.support.processes.etcd_child URL KEY TTL_MS`.
Prints the granted ttl once its ephemeral key exists.
"""

from __future__ import annotations

import asyncio
import sys

from anabranch.metadata.interface import ABSENT
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock


async def main(url: str, key: str, ttl_ms: int) -> None:
    async with open_store(url, SystemClock()) as store:
        session = await store.open_session(ttl_ms)
        await store.put(key, b"held", expected=ABSENT, session=session)
        sys.stdout.write(f"{session.ttl_ms}\n")
        sys.stdout.flush()
        await session.wait_lost()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
