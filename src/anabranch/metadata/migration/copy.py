"""Copies a tree to another store while it changes: one scan, then the changed keys, until few are left.

Nothing here holds the tree: memory grows with the keys that change during the copy, and that number is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar

from anabranch.metadata.archive import Sequence as SequenceCounter
from anabranch.metadata.interface import (
    ANY,
    ChangeKind,
    Counting,
    Item,
    MetadataStore,
    Sharded,
    StoreUnavailable,
    Versioned,
    Watch,
)
from anabranch.metadata.migration.pacing import Pace
from anabranch.metadata.migration.record import BARRIERS, MIGRATION, ROOT, Counts, MigrationFailed, is_copied
from anabranch.metadata.migration.tree_digest import TreeDigest, bucket_of
from anabranch.metadata.transfer import SEQUENCES, raise_sequence, sequence_prefix
from anabranch.model.errors import Error
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

CHANGED_MAX = 500_000
READS_AT_ONCE = 64
WRITES_AT_ONCE = 2
"""Pages that are written while the next one is read: the source, this process and the target work at the same time."""

PAGE_BYTES = 4_000_000
COUNT_S = 5.0
PURGE_KEYS = 20_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of `compare_trees`: number of records in each, and the first keys that differ."""

    source_records: int
    target_records: int
    different: int
    keys: tuple[str, ...]


class ChangedKeys:
    """Keys that changed since it was opened, from a watch of the whole tree."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._waiting: set[str] = set()
        self.ever: set[str] = set()
        self.is_lost = False
        self._barriers: set[str] = set()  # not seen yet
        self._rounds = 0
        self._arrived = asyncio.Event()
        self._tasks = TaskOwner("migration changes")
        self._tasks.spawn(self._follow(), "watch")

    def __len__(self) -> int:
        return len(self._waiting)

    async def _follow(self) -> None:
        async for change in self._watch:
            if change.kind is ChangeKind.INVALIDATED:
                self.is_lost = True
            elif is_copied(change.key):
                self._waiting.add(change.key)
                self.ever.add(change.key)
                if len(self.ever) > CHANGED_MAX:
                    self.is_lost = True
            elif change.key.startswith(f"{BARRIERS}/"):
                self._barriers.discard(change.key)
            if self.is_lost or not self._barriers:
                self._arrived.set()

    def take(self) -> list[str]:
        taken, self._waiting = sorted(self._waiting), set()
        return taken

    def restart(self) -> None:
        """Forget everything: the tree is copied again."""
        self._waiting, self.ever, self.is_lost = set(), set(), False

    async def wait_barrier(self, source: MetadataStore, seconds: float) -> None:
        """Wait until every change that was confirmed before this call is known.

        A store with shards orders the changes of one shard only, so every shard gets a key.
        """
        self._rounds += 1
        below = f"{BARRIERS}/{self._rounds}"
        keys = source.keys_in_all_shards(below) if isinstance(source, Sharded) else [f"{below}-0"]
        self._barriers = set(keys)
        self._arrived.clear()
        await asyncio.gather(*(source.put(key, b"", expected=ANY) for key in keys))
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError as error:
            raise StoreUnavailable("the watch of the source did not deliver in time") from error
        if self.is_lost:
            raise MigrationFailed("the watch of the source lost changes")

    async def close(self) -> None:
        self._watch.close()
        await self._tasks.close()


class TreeCopy:
    """`check_held` is called before every write to the target and raises if another attempt may use it."""

    def __init__(
        self,
        source: MetadataStore,
        target: MetadataStore,
        changed: ChangedKeys,
        pace: Pace,
        check_held: Callable[[], None],
    ) -> None:
        self._source, self._target, self._changed, self._pace = source, target, changed, pace
        self._check_held = check_held
        self._digest = TreeDigest()
        self._ephemerals: set[str] = set()
        self.counts = Counts()

    async def copy_tree(self) -> None:
        self._digest = TreeDigest()
        self._ephemerals.clear()
        self.counts = Counts(expected=await self._expected())
        writes: deque[asyncio.Task[None]] = deque()
        try:
            async with aclosing(pages_of(self._source.bulk_scan("/"), self._pace.page_records)) as pages:
                async for page in pages:
                    kept = durable(page)
                    self._ephemerals |= {key for key, found in page if found.ephemeral and is_copied(key)}
                    if kept:
                        if len(writes) >= WRITES_AT_ONCE:
                            await writes.popleft()
                        self._check_held()
                        writes.append(asyncio.create_task(self._target.bulk_write(kept, preserve=True)))
                    self._digest.add(kept)
                    self._count(kept)
                    await self._pace.wait(len(kept))
            while writes:
                await writes.popleft()
        finally:
            for write in writes:
                write.cancel()
            await asyncio.gather(*writes, return_exceptions=True)

    async def _expected(self) -> int:
        """For the estimate of the rest only, so the copy goes on without it."""
        if not isinstance(self._source, Counting):
            return 0
        try:
            async with asyncio.timeout(COUNT_S):
                return await self._source.keys_about()
        except (Error, TimeoutError) as error:
            log.info("the records are not counted before the copy", extra={"reason": str(error) or "no answer in time"})
            return 0

    async def copy_changes(self, *, is_last: bool = False) -> None:
        """Copy the keys that changed, and read each back.

        In the last round the owners of ephemeral keys have created them in the target, so these are left alone.
        """
        for keys in parts(self._changed.take(), self._pace.page_records):
            found = await read_all(self._source, keys)
            self._ephemerals.difference_update(keys)
            self._ephemerals |= {key for key, one in found.items() if one is not None and one.ephemeral}
            kept = [(key, one) for key, one in found.items() if one is not None and not one.ephemeral]
            gone = [key for key, one in found.items() if one is None or (one.ephemeral and not is_last)]
            self._check_held()
            if gone:
                await self._target.bulk_delete(gone[::-1])
            if kept:
                await self._target.bulk_write(kept, preserve=True)
            await self._check_copied(dict(kept), gone)
            self.counts = replace(self.counts, changed=self.counts.changed + len(keys))
            if not is_last:
                await self._pace.wait(len(keys))

    async def _check_copied(self, kept: dict[str, Versioned], gone: Sequence[str]) -> None:
        copied = await read_all(self._target, [*kept, *gone])
        for key, found in copied.items():
            if found != kept.get(key):
                raise MigrationFailed(f"{key} is not the same in the target after it was copied")

    async def copy_sequences(self) -> None:
        async for key, found in self._source.scan(SEQUENCES):
            prefix = sequence_prefix(key)
            if prefix is not None:
                await raise_sequence(self._target, SequenceCounter(prefix, int(found.value)))

    async def verify_tree(self) -> None:
        """Compare the target with what the scan read. Keys that changed meanwhile were compared when copied."""
        changed = self._changed.ever
        skipped = {bucket_of(key) for key in changed}
        copied = TreeDigest()
        async with aclosing(pages_of(self._target.bulk_scan("/"), self._pace.page_records)) as pages:
            async for page in pages:
                kept = durable(page)
                copied.add(kept)
                self.counts = replace(self.counts, verified=self.counts.verified + len(kept))
                alone = [item for item in kept if item[0] not in changed and bucket_of(item[0]) in skipped]
                if alone:
                    await self._check_same(dict(alone))
                await self._pace.wait(len(kept))
        late = {bucket_of(key) for key in changed}  # the set has grown
        if bad := [bucket for bucket in self._digest.differing(copied) if bucket not in late]:
            raise MigrationFailed(f"{len(bad)} parts of the tree are not the same in the target after the copy")

    async def _check_same(self, copied: dict[str, Versioned]) -> None:
        for key, found in (await read_all(self._source, list(copied))).items():
            if found != copied[key] and key not in self._changed.ever:
                raise MigrationFailed(f"{key} is not the same in the target after the copy")

    async def missing_ephemerals(self) -> list[str]:
        """Ephemeral keys of the source that their owners have not created in the target."""
        present = await read_all(self._source, sorted(self._ephemerals))
        wanted = {key: found for key, found in present.items() if found is not None and found.ephemeral}
        created = await read_all(self._target, list(wanted))
        self.counts = replace(self.counts, ephemerals=len(wanted))
        return [key for key, found in created.items() if not _is_copy(found, wanted[key])]

    def _count(self, items: Sequence[Item]) -> None:
        counts, size = self.counts, sum(len(found.value) for _, found in items)
        self.counts = replace(counts, records=counts.records + len(items), value_bytes=counts.value_bytes + size)


def _is_copy(found: Versioned | None, wanted: Versioned) -> bool:
    return found is not None and found.ephemeral and found.value == wanted.value


def durable(items: Iterable[Item]) -> list[Item]:
    return [one for one in items if not one[1].ephemeral and (not one[0].startswith(ROOT) or is_copied(one[0]))]


async def pages_of(scan: AsyncIterator[list[Item]], records: int) -> AsyncGenerator[list[Item], None]:
    """What `scan` yields, in pages of about `records` records and at most about PAGE_BYTES."""
    page: list[Item] = []
    size = 0
    async for found in scan:
        for item in found:
            page.append(item)
            size += len(item[1].value)
            if len(page) >= records or size >= PAGE_BYTES:
                yield page
                page, size = [], 0
    if page:
        yield page


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


async def read_all(store: MetadataStore, keys: Sequence[str]) -> dict[str, Versioned | None]:
    found: dict[str, Versioned | None] = {}
    for part in parts(keys, READS_AT_ONCE):
        found.update(zip(part, await asyncio.gather(*map(store.get, part)), strict=True))
    return found


async def purge(store: MetadataStore, check_held: Callable[[], None], *, keeps_record: bool) -> None:
    """Delete the whole tree and its sequence counters; the version numbering stays, and with `keeps_record` MIGRATION.

    Keys of sessions end with them.
    """
    await store.sync()
    kept = {MIGRATION} if keeps_record else set[str]()
    for prefix in ("/", SEQUENCES):
        while keys := await _some_keys(store, prefix, kept):
            check_held()
            await store.bulk_delete(keys[::-1])


async def _some_keys(store: MetadataStore, prefix: str, kept: set[str]) -> list[str]:
    keys: list[str] = []
    if prefix == "/":
        async for page in store.bulk_scan(prefix):
            keys += [key for key, _ in page if key not in kept]
            if len(keys) >= PURGE_KEYS:
                break
        return keys
    return [key async for key, _ in store.scan(prefix)]


async def compare_trees(one: MetadataStore, two: MetadataStore, pace: Pace, shown_max: int = 20) -> Comparison:
    """Compare the durable keys of two stores."""
    first, second = TreeDigest(), TreeDigest()
    for store, digest in ((one, first), (two, second)):
        async for page in store.bulk_scan("/"):
            for part in parts(page, pace.page_records):
                digest.add(durable(part))
                await pace.wait(len(part))
    differing = set(first.differing(second))
    keys: set[str] = set()
    if differing:
        for store in (one, two):
            async for page in store.bulk_scan("/"):
                keys |= {key for key, _ in durable(page) if bucket_of(key) in differing}
                if len(keys) > CHANGED_MAX:
                    raise MigrationFailed(f"more than {CHANGED_MAX} keys differ")
                await pace.wait(len(page))
    ordered = sorted(keys)
    mine, theirs = await read_all(one, ordered), await read_all(two, ordered)
    different = [key for key in ordered if mine[key] != theirs[key]]
    return Comparison(first.records, second.records, len(different), tuple(different[:shown_max]))
