"""Bulk writes: transactions as full as the server accepts, several of them pipelined, encoded by hand.

Encoding by hand halves the CPU time of a bulk write; `tests/unit/metadata/etcd/test_etcd.py` compares it with protobuf.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from anabranch.metadata.envelope import wrap_moved, wrap_timed
from anabranch.metadata.etcd import etcd_pb2 as pb
from anabranch.metadata.etcd import requests
from anabranch.metadata.etcd.channel import DELETE, TXN, TXN_ENCODED, EtcdChannel
from anabranch.metadata.etcd.records import Epoch, EtcdRecords
from anabranch.metadata.interface import Item, RequestTooLarge, StoreFull, StoreUnavailable, ValueTooLarge
from anabranch.model.errors import BadRequest
from anabranch.runtime.clock import Clock

OPERATIONS_MAX = 128  # etcd's default limit, of compares and of writes
BATCH_BYTES_MAX = 1_000_000
IN_FLIGHT = 16
DEADLINE_S = 30.0
_ATTEMPTS_MAX = 20

Batch = list[Item]
T = TypeVar("T")


def varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL = [bytes((number,)) for number in range(128)]


def encode_compare(key: bytes, native: int) -> bytes:
    """`requests.compare` as a field of a TxnRequest."""
    body = b"\x10\x02\x1a" + varint(len(key)) + key + b"\x30" + varint(native)
    return b"\x0a" + varint(len(body)) + body


def encode_put(key: bytes, stored: bytes) -> bytes:
    """`requests.put_op` as a success operation of a TxnRequest."""
    head = b"\x0a" + varint(len(key)) + key + (b"\x12" + varint(len(stored)) if stored else b"")
    size = len(head) + len(stored)
    inner = b"\x12" + varint(size)
    return b"".join((b"\x12", varint(len(inner) + size), inner, head, stored))


def encode_delete(key: bytes) -> bytes:
    body = b"\x0a" + varint(len(key)) + key
    inner = b"\x1a" + varint(len(body)) + body
    return b"\x12" + varint(len(inner)) + inner


def batches(items: Iterable[Item], count_max: int = OPERATIONS_MAX - 1) -> Iterator[Batch]:
    """Batches of items that fit into one transaction, with one compare left for the epoch."""
    batch: Batch = []
    size = 0
    for item in items:
        item_bytes = 2 * len(item[0]) + len(item[1].value) + 64
        if batch and (len(batch) >= count_max or size + item_bytes > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item_bytes
    if batch:
        yield batch


async def in_flight(work: Iterator[Callable[[], Awaitable[None]]], count: int = IN_FLIGHT) -> None:
    """Run all pieces of work, `count` at a time. The first failure stops the rest and is raised."""

    async def run_pieces() -> None:
        for piece in work:
            await piece()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(run_pieces())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


class BulkWriter:
    """One call of bulk_write or bulk_delete."""

    def __init__(self, channel: EtcdChannel, records: EtcdRecords, clock: Clock) -> None:
        self._channel = channel
        self._records = records
        self._clock = clock
        self._keys_exist = False  # once seen, records are read before they are written

    async def write(self, items: Sequence[Item], *, preserve: bool) -> None:
        unique = dict(items)  # a transaction may have a key once; the last value counts
        if preserve:
            await self._records.load_epoch()  # `raise_versions` may have been called by another client
            check_versions(unique.items(), self._records.epoch)
        one = self._move if preserve else self._put
        try:
            await in_flight(split_if_too_large(one, batch) for batch in batches(unique.items()))
        except RequestTooLarge as error:
            key, largest = max(unique.items(), key=lambda item: len(item[1].value))
            raise ValueTooLarge(key, len(largest.value)) from error

    async def delete(self, keys: Sequence[str]) -> None:
        raw = [self._records.keyspace.key(key) for key in dict.fromkeys(keys)]
        parts = (raw[start : start + OPERATIONS_MAX] for start in range(0, len(raw), OPERATIONS_MAX))
        await in_flight(split_if_too_large(self._delete, part) for part in parts)

    async def _move(self, batch: Batch) -> None:
        """Store versions and times as given, over present records."""
        keyspace = self._records.keyspace
        puts = [
            encode_put(keyspace.key(key), wrap_moved(v.value, v.version, v.created_ms, v.modified_ms))
            for key, v in batch
        ]
        for _ in range(_ATTEMPTS_MAX):
            guard = encode_compare(keyspace.epoch, self._records.epoch.native)
            if await self._send([guard, *puts]):
                return
            await self._records.load_epoch()
            check_versions(batch, self._records.epoch)
        raise StoreUnavailable("gave up: the epoch of the store keeps changing")

    async def _put(self, batch: Batch) -> None:
        """Ordinary writes: present records keep their creation time."""
        keyspace = self._records.keyspace
        known = await self._read(batch) if self._keys_exist else {}
        for _ in range(_ATTEMPTS_MAX):
            now_ms = self._clock.now_ms()
            parts = [encode_compare(keyspace.epoch, self._records.epoch.native)]
            puts = []
            for key, given in batch:
                raw = keyspace.key(key)
                native, created_ms = known.get(key, (0, now_ms))
                parts.append(encode_compare(raw, native))
                puts.append(encode_put(raw, wrap_timed(given.value, created_ms, now_ms)))
            if await self._send(parts + puts):
                return
            self._keys_exist = True
            known = await self._read(batch)
        raise StoreUnavailable("gave up, because other writers were always first")

    async def _read(self, batch: Batch) -> dict[str, tuple[int, int]]:
        """Revision and creation time of the present records; updates the epoch too."""
        keyspace = self._records.keyspace
        reads = [requests.range_op(keyspace.epoch), *(requests.range_op(keyspace.key(key)) for key, _ in batch)]
        response = await self._channel.repeat(TXN, pb.TxnRequest(success=reads), end=self._channel.end(DEADLINE_S))
        self._records.note_epoch(requests.found(response, 0))
        known = {}
        for index, (key, _) in enumerate(batch, 1):
            kv = requests.found(response, index)
            if kv is not None:
                known[key] = kv.mod_revision, self._records.versioned(kv).created_ms
        return known

    async def _send(self, parts: list[bytes]) -> bool:
        """False if a compare failed."""
        verdict = await self._channel.once(TXN_ENCODED, b"".join(parts), end=self._channel.end(DEADLINE_S))
        return verdict.succeeded

    async def _delete(self, keys: list[bytes]) -> None:
        try:
            await self._send(list(map(encode_delete, keys)))
        except StoreFull:  # a full etcd refuses every transaction, but not a plain delete
            for key in keys:
                await self._channel.once(DELETE, pb.DeleteRangeRequest(key=key), end=self._channel.end(DEADLINE_S))


def split_if_too_large(work: Callable[[list[T]], Awaitable[None]], batch: list[T]) -> Callable[[], Awaitable[None]]:
    """A function that does `work` on the batch, in halves if the server finds it too large."""

    async def do(part: list[T]) -> None:
        try:
            await work(part)
        except RequestTooLarge:
            if len(part) == 1:
                raise
            middle = len(part) // 2
            await do(part[:middle])
            await do(part[middle:])

    return partial(do, batch)


def check_versions(items: Iterable[Item], epoch: Epoch) -> None:
    """Moved versions must be below all versions that this store assigns itself."""
    for key, given in items:
        if given.version >= epoch.numbering.offset:
            raise BadRequest(f"{key}: version {given.version} is above the floor given to raise_versions")
