"""Writes of a short-lived program, such as a command line tool, into the metadata store of a cluster that may be moved.

The program takes part in migrations like a broker: an attempt waits for its writes, and what it writes afterwards is
in the target. Into a store that is no longer that of the cluster it writes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anabranch.metadata.interface import MetadataStore
from anabranch.metadata.migration.follow import successor
from anabranch.metadata.migration.participant import OpenTarget, Participant
from anabranch.metadata.migration.record import read_record
from anabranch.metadata.migration.switching_store import SwitchingStore
from anabranch.metadata.transfer import is_empty
from anabranch.metadata.write_gate import GatedStore
from anabranch.model.errors import NotAllowed
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock


class StoreMoved(NotAllowed):
    """The store is not the one that the cluster uses. `url` is the other one."""

    code = "metadata-moved"

    def __init__(self, reason: str, url: str) -> None:
        super().__init__(reason)
        self.url = url


@asynccontextmanager
async def opened_for_writing(
    url: str, open_store: OpenTarget, *, name: str, clock: Clock, chance: Chance
) -> AsyncIterator[MetadataStore]:
    """`name` is unique among the processes that write metadata. Raises StoreMoved."""
    switching = SwitchingStore(open_store(url))
    store = GatedStore(switching)
    try:
        await store.open()
        await store.sync()
        if follows := successor(await read_record(store)):
            raise StoreMoved("the cluster uses another metadata store since a migration", follows)
        if await is_empty(store):  # no cluster, and an import wants to find it so
            yield store
            return
        participant = Participant(
            switching, store.gate, name=name, url=url, open_target=open_store, clock=clock, chance=chance
        )
        try:
            await participant.start()
            yield store
        finally:
            await participant.close()
    finally:
        await store.close()
