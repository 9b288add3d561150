"""Reads of many keys, in pages of one revision.

etcd counts all remaining keys for every page, so small pages of a large tree are slow (measured: 500,000 keys in pages
of 1,000 take 30–60 s, in pages of 20,000 5 s). A page is bounded by keys and, estimated from the previous page, by
bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from anabranch.metadata.etcd import etcd_pb2 as pb
from anabranch.metadata.etcd.channel import RANGE, AnswerTooLarge, Compacted, EtcdChannel
from anabranch.metadata.etcd.keys import Range, after
from anabranch.metadata.etcd.records import EtcdRecords, versioned
from anabranch.metadata.interface import RESERVED, Item, is_within

PAGE_KEYS_MAX = 20_000
PAGE_KEYS_FIRST = 500
PAGE_BYTES = 16 * 1024 * 1024
CHUNK_ITEMS = 500
"""Items are built in chunks of this size, so that other tasks can run in between."""

DEADLINE_S = 60.0
_ATTEMPTS_MAX = 3


def next_limit(limit: int, keys: int, size: int) -> int:
    """Keys to request after a page with `keys` keys and `size` bytes."""
    fitting = PAGE_BYTES * max(keys, 1) // max(size, 1)
    return max(1, min(PAGE_KEYS_MAX, fitting, limit * 10))


class Pages:
    """One walk through a range."""

    def __init__(self, channel: EtcdChannel, *, keys_only: bool = False, revision: int = 0) -> None:
        self._channel = channel
        self._keys_only = keys_only
        self._limit = PAGE_KEYS_MAX if keys_only else PAGE_KEYS_FIRST
        self.revision = revision

    async def read(self, part: Range) -> pb.RangeResponse:
        """The first page of `part`, at the revision of the walk's first page."""
        begin, end = part
        while True:
            request = pb.RangeRequest(
                key=begin, range_end=end, limit=self._limit, revision=self.revision, keys_only=self._keys_only
            )
            try:
                response = await self._channel.repeat(RANGE, request, end=self._channel.end(DEADLINE_S))
            except AnswerTooLarge:
                if self._limit == 1:
                    raise
                self._limit = max(1, self._limit // 8)
                continue
            self.revision = self.revision or response.header.revision
            if response.more and not self._keys_only:
                self._limit = next_limit(self._limit, len(response.kvs), response.ByteSize())
            return response


async def names_below(channel: EtcdChannel, records: EtcdRecords, tree: str) -> list[str]:
    """The names directly below `tree`. After a page that ends inside a name's subtree, the rest of it is skipped."""
    part = records.keyspace.below(tree)
    for _ in range(_ATTEMPTS_MAX - 1):
        try:
            return await _names_below(Pages(channel, keys_only=True), part, tree)
        except Compacted:
            continue  # the revision was compacted during the walk: start again at the present one
    return await _names_below(Pages(channel, keys_only=True), part, tree)


async def _names_below(pages: Pages, part: Range, tree: str) -> list[str]:
    begin, end = part
    cut = len(begin)
    names: dict[bytes, None] = {}
    while True:
        response = await pages.read((begin, end))
        for kv in response.kvs:
            names[kv.key[cut:].partition(b"/")[0]] = None
        if not response.more:
            break
        last: bytes = response.kvs[-1].key
        slash = last.find(b"/", cut)
        begin = after(last) if slash < 0 else last[:slash] + b"0"
    found = sorted(name.decode(errors="replace") for name in names if name)
    return found if tree else [name for name in found if f"/{name}" != RESERVED]


async def walk(
    channel: EtcdChannel, records: EtcdRecords, tree: str, *, is_snapshot: bool
) -> AsyncIterator[list[Item]]:
    """`tree` and all below it, parents first. The next page is fetched while the present one is used."""
    pages = Pages(channel)
    begin, end = records.keyspace.below(tree)
    if tree:
        alone = records.keyspace.key(tree)
        response = await pages.read((alone, after(alone)))
        if items := _items(records, tree, response, 0):
            yield items
    response = await pages.read((begin, end))
    next_page: asyncio.Task[pb.RangeResponse] | None = None
    try:
        while True:
            if response.more:
                begin = after(response.kvs[-1].key)
                next_page = asyncio.ensure_future(pages.read((begin, end)))
            for start in range(0, len(response.kvs), CHUNK_ITEMS):
                if items := _items(records, tree, response, start):
                    yield items
            if next_page is None:
                return
            try:
                response = await next_page
            except Compacted:
                if is_snapshot:
                    raise
                pages = Pages(channel)
                response = await pages.read((begin, end))
            next_page = None
    finally:
        if next_page is not None:
            next_page.cancel()
            await asyncio.gather(next_page, return_exceptions=True)


def _items(records: EtcdRecords, tree: str, response: pb.RangeResponse, start: int) -> list[Item]:
    numbering, path_of = records.epoch.numbering, records.keyspace.path
    skipped = "\0" if tree else RESERVED  # no key begins with NUL
    items: list[Item] = []
    for kv in response.kvs[start : start + CHUNK_ITEMS]:
        path = path_of(kv.key)
        if path is not None and not (path.startswith(skipped) and is_within(path, skipped)):
            items.append((path, versioned(kv, numbering)))
    return items
