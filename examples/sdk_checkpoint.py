"""A reader that keeps its position with its result, so that both change together: an index that survives restarts.

The topic is split and merged between the runs; the counts are exact all the same, because a checkpoint is.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import uuid
from pathlib import Path

import anabranch
import anabranch.admin
from anabranch import Checkpoint

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")
ADMIN_URL = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("ANABRANCH_ADMIN_URL", "http://localhost:8080")
TOPIC = f"topic://public/default/visits-{uuid.uuid4().hex[:8]}"
PAGES, VISITS = 10, 300


class Index:
    """Visits per page, and how far they are counted: one file, replaced as a whole."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.visits: dict[str, int] = {}
        self.start = Checkpoint.earliest()
        if file.exists():
            stored = json.loads(file.read_text())
            self.visits = stored["visits"]
            self.start = Checkpoint.from_bytes(bytes.fromhex(stored["checkpoint"]))

    def store(self, checkpoint: Checkpoint) -> None:
        value = {"visits": self.visits, "checkpoint": checkpoint.to_bytes().hex()}
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(value))
        fresh.replace(self._file)


async def count(client: anabranch.Client, file: Path, most: int) -> int:
    """One run of the program: goes on where the last one stored, stops after `most` visits, as if it had crashed."""
    index = Index(file)
    seen = 0
    async with client.checkpoint_consumer(TOPIC, start=index.start) as reader:
        while seen < most and (messages := await reader.receive_many(25, timeout=2)):
            for message in messages:
                page = str(message.key)
                index.visits[page] = index.visits.get(page, 0) + 1
            seen += len(messages)
            index.store(reader.checkpoint())
        await reader.receive(timeout=0.01)  # received and not stored: the next run receives it again
    return sum(index.visits.values())


async def visit(client: anabranch.Client, count: int) -> None:
    async with client.producer(TOPIC) as producer:
        for n in range(count):
            producer.send_nowait(b"", key=f"page-{n % PAGES}")
        await producer.flush()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "index.json"
        async with anabranch.connect(SERVICE_URL) as client, anabranch.admin.connect(ADMIN_URL) as admin:
            await visit(client, VISITS)
            print(f"first run:  {await count(client, file, 100)} visits counted")
            halves = await admin.scalable_topics.split(TOPIC, 0)
            await visit(client, VISITS)
            print(f"second run: {await count(client, file, 300)} visits counted, across a split")
            await admin.scalable_topics.merge(TOPIC, halves)
            await visit(client, VISITS)
            total = await count(client, file, 10_000)
            print(f"last run:   {total} visits counted, across a merge")
            assert total == 3 * VISITS
            assert set(Index(file).visits.values()) == {3 * VISITS // PAGES}


asyncio.run(main())
