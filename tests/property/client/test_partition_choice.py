"""The SDK's choice of a partition is that of v4 clients: one message at a time, in bulk, and for what is stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.messages.outgoing import OutgoingMessage
from anabranch.client.producer.ancestry import Ancestor, Ancestry
from anabranch.model.hashrange import FULL
from anabranch.model.partition_hash import PartitionHash
from anabranch.model.routing import Routing, RoutingKind, partition_of
from anabranch.protocol import codec
from anabranch.protocol.keyhash import murmur3_32

HASHES = st.sampled_from(PartitionHash)
COUNTS = st.integers(2, 70)
KEYS = st.one_of(st.none(), st.text(), st.binary())


def expected(one: PartitionHash, key: str | bytes | None, number: int, count: int) -> int:
    return number % count if key is None else one.partition_of(key, count)


@given(one=HASHES, key=KEYS, number=st.integers(0, 1 << 40), count=COUNTS)
def test_single_message_goes_where_a_v4_client_sends_its_key(
    one: PartitionHash, key: str | bytes | None, number: int, count: int
) -> None:
    raw = -1 if key is None else murmur3_32(key)
    assert partition_of(one, key, raw, number, count) == expected(one, key, number, count)


@given(one=HASHES, keys=st.lists(st.one_of(st.none(), st.text()), max_size=20), first=st.integers(0, 99), count=COUNTS)
def test_bulk_routing_equals_single_messages(
    one: PartitionHash, keys: list[str | None], first: int, count: int
) -> None:
    routing = Routing(RoutingKind.MOD_N, partition_hash=one)
    numbers = codec.route(keys, routing, range(count), first=first)
    assert list(numbers) == [expected(one, key, first + row, count) for row, key in enumerate(keys)]


@given(one=HASHES, keys=st.lists(st.binary(), min_size=1, max_size=20), count=COUNTS)
def test_keys_of_bytes_are_routed_by_their_base64_text(one: PartitionHash, keys: list[bytes], count: int) -> None:
    routing = Routing(RoutingKind.MOD_N, partition_hash=one)
    numbers = codec.route(keys, routing, range(count))
    assert list(numbers) == [one.partition_of(key, count) for key in keys]


@given(one=HASHES, key=KEYS, number=st.integers(0, 99), count=st.integers(2, 9), stored=st.integers(-1, 99))
def test_former_partition_has_only_what_was_routed_to_it(
    one: PartitionHash, key: str | bytes | None, number: int, count: int, stored: int
) -> None:
    """After a migration a producer asks what the partitions have stored; one of them is far ahead."""
    record = OutgoingMessage(number, b"", key, hash=-1 if key is None else murmur3_32(key))
    mine = expected(one, key, number, count)
    for ahead in range(count):
        ancestors = [Ancestor(index, FULL, stored if index == ahead else -1, None, one) for index in range(count)]
        assert Ancestry(ancestors).has(record) == (ahead == mine and number <= stored)
