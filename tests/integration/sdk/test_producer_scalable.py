"""Producing to scalable topics of a real broker: basics, sequence ids, running splits and merges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import anabranch
from anabranch import Backoff, Batching, Client, ConnectionPolicy
from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.client.config import Chunking
from anabranch.client.errors import BadOption, QueueFull, TimedOut
from anabranch.node.node import Node
from tests.support.processes.scalable_nodes import admin_of, plain_settings
from tests.support.traffic.keyed_load import RETRY_DELAYS, KeyedLoad
from tests.support.traffic.read_all_segments import stored

TOPIC = "topic://public/default/orders"
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.01, maximum=0.1))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(plain_settings(tmp_path)) as node:
        yield node


@pytest.fixture
def admin(node: Node) -> ScalableAdmin:
    return admin_of(node)


@pytest.fixture
async def sdk(node: Node) -> AsyncIterator[Client]:
    async with anabranch.connect(node.service_url, connection=QUICK) as client:
        yield client


async def values(node: Node) -> list[bytes]:
    return [message.data for message in await stored(node.service_url, TOPIC)]


def halves(first: int) -> Iterator[tuple[int, tuple[int, int], int]]:
    """Ids of: a whole segment, its two children, the one they are merged to, which is whole again."""
    whole, following = first, first + 1
    while True:
        yield whole, (following, following + 1), following + 2
        whole, following = following + 2, following + 3


# -- basics


async def test_scenarios_1_3_4_first_message_creates_the_topic(node: Node, sdk: Client) -> None:
    async with sdk.producer("topic://public/default/orders", name="shop") as producer:
        first = await producer.send(b"one", key="k", timeout=RETRY_DELAYS)
        assert (producer.topic, producer.name) == (TOPIC, "shop")
        assert (first.topic, first.lane) == (TOPIC, 0)
    assert await values(node) == [b"one"]


async def test_scenario_6_names(node: Node, admin: ScalableAdmin, sdk: Client) -> None:
    await admin.create(TOPIC, 2, {})
    for name in ("orders", "public/default/orders", "persistent://public/default/orders", TOPIC):
        async with sdk.producer(name) as producer:
            assert producer.topic == TOPIC
            await producer.send(name.encode(), timeout=RETRY_DELAYS)
    assert len(await values(node)) == 4
    for name in ("non-persistent://public/default/x", "segment://public/default/orders/0000-ffff-0"):
        with pytest.raises(BadOption):
            sdk.producer(name)


async def test_scenarios_11_12_16_keys_in_order_over_all_segments(
    node: Node, admin: ScalableAdmin, sdk: Client
) -> None:
    await admin.create(TOPIC, 4, {})
    async with sdk.producer(TOPIC, batching=Batching(max_messages=7)) as producer:
        load = KeyedLoad(producer)
        load.burst(1000)
        keyless = [producer.send_nowait(b"none|%d|" % n) for n in range(100)]
        await producer.flush(timeout=RETRY_DELAYS)
        ids = [future.result() for future in (*load.futures, *keyless)]
    assert len(set(ids)) == 1100
    assert {one.lane for one in ids[:1000]} == {one.lane for one in ids[1000:]} == {0, 1, 2, 3}
    found = await values(node)
    verdict = load.verdict([one for one in found if not one.startswith(b"none")])
    assert (len(found), verdict.holds, verdict.repeated) == (1100, True, 0)


async def test_scenario_20_21_memory_limit_covers_all_segments(node: Node, admin: ScalableAdmin, sdk: Client) -> None:
    await admin.create(TOPIC, 2, {})
    async with sdk.producer(TOPIC, pending_bytes_max=10_000, batching=Batching(max_delay=60)) as producer:
        with pytest.raises(QueueFull):
            for n in range(1000):
                producer.send_nowait(b"x" * 100, key=f"key-{n}")
        assert producer.pending_bytes <= 10_000
        waiting = asyncio.ensure_future(producer.send(b"x" * 100, key="late"))
        await asyncio.sleep(0)
        assert not waiting.done()
        await producer.flush(timeout=RETRY_DELAYS)
        await asyncio.sleep(0)
        await producer.flush(timeout=RETRY_DELAYS)
        assert (await waiting).lane in (0, 1)
        assert producer.pending_bytes == 0


async def test_scenario_15_flush_comes_after_every_future(sdk: Client) -> None:
    async with sdk.producer(TOPIC) as producer:
        futures = [producer.send_nowait(b"x", key=f"key-{n}") for n in range(300)]
        await producer.flush(timeout=RETRY_DELAYS)
        assert all(future.done() for future in futures)


# -- sequence ids


async def test_scenario_17_sequence_ids(node: Node, sdk: Client) -> None:
    async with sdk.producer(TOPIC, name="shop") as producer:
        assert producer.last_sequence_id == -1
        await producer.send(b"a", timeout=RETRY_DELAYS)
        await producer.send(b"b", sequence_id=10, timeout=RETRY_DELAYS)
        assert producer.last_sequence_id == 10
    async with sdk.producer(TOPIC, name="shop", initial_sequence_id=99) as producer:
        assert producer.last_sequence_id == 99
        await producer.send(b"c", timeout=RETRY_DELAYS)
        assert producer.last_sequence_id == 100
    assert [one.metadata.sequence_id for one in await stored(node.service_url, TOPIC)] == [0, 10, 100]


async def test_scenario_18_repeated_sequence_id_is_stored_once_after_split(
    node: Node, admin: ScalableAdmin, sdk: Client
) -> None:
    await admin.create(TOPIC, 1, {})
    async with sdk.producer(TOPIC, name="shop") as producer:
        for n in range(20):
            producer.send_nowait(b"%d" % n, key=f"key-{n}", sequence_id=n)
        again = producer.send_nowait(b"again", key="key-3", sequence_id=3)
        await producer.flush(timeout=RETRY_DELAYS)
        assert again.result().entry == -1
        await admin.split(TOPIC, 0, 2, None, None)
        for n in range(25):
            producer.send_nowait(b"%d" % n, key=f"key-{n}", sequence_id=n)
        await producer.flush(timeout=RETRY_DELAYS)
    await admin.merge(TOPIC, [1, 2], None)
    async with sdk.producer(TOPIC, name="shop") as producer:  # another process: it begins anew and knows no ids
        assert producer.last_sequence_id == 24
        for n in range(30):
            producer.send_nowait(b"%d" % n, key=f"key-{n}", sequence_id=n)
        await producer.flush(timeout=RETRY_DELAYS)
    assert sorted(int(one) for one in await values(node)) == list(range(30))


# -- splits and merges


async def test_scenario_26_sends_right_after_a_split(node: Node, admin: ScalableAdmin, sdk: Client) -> None:
    await admin.create(TOPIC, 1, {})
    async with sdk.producer(TOPIC) as producer:
        load = KeyedLoad(producer)
        load.burst(100)
        await admin.split(TOPIC, 0, 3, None, None)
        load.burst(100)
        await producer.flush(timeout=RETRY_DELAYS)
        verdict = load.verdict(await values(node))
    assert (verdict.read, verdict.holds, verdict.repeated) == (200, True, 0)


@pytest.mark.parametrize("batching", [None, Batching(max_messages=5), Batching()], ids=["none", "five", "usual"])
async def test_scenarios_27_to_31_splits_and_merges_under_load(
    node: Node, admin: ScalableAdmin, sdk: Client, batching: Batching | None
) -> None:
    await admin.create(TOPIC, 1, {})
    async with sdk.producer(TOPIC, name="shop", batching=batching) as producer:
        load = KeyedLoad(producer)
        async with load.running():
            for _, (whole, parts, _) in zip(range(6), halves(0), strict=False):
                await load.progress()
                await admin.split(TOPIC, whole, 2, None, None)
                await load.progress()
                await admin.merge(TOPIC, list(parts), None)
        verdict = load.verdict(await values(node))
    assert verdict.holds, verdict
    assert verdict.repeated == 0


async def test_scenario_29_three_generations_of_splits(node: Node, admin: ScalableAdmin, sdk: Client) -> None:
    await admin.create(TOPIC, 1, {})
    async with sdk.producer(TOPIC) as producer:
        load = KeyedLoad(producer)
        async with load.running():
            for segment in range(7):
                await load.progress(30)
                await admin.split(TOPIC, segment, 2, None, None)
        verdict = load.verdict(await values(node))
    assert verdict.holds, verdict
    assert verdict.repeated == 0


async def test_scenario_32_lost_connections_and_splits_keep_exactly_once(
    node: Node, admin: ScalableAdmin, sdk: Client
) -> None:
    await admin.create(TOPIC, 1, {})
    async with sdk.producer(TOPIC, name="shop") as producer:
        load = KeyedLoad(producer)
        async with load.running():
            for turn, (whole, parts, _) in zip(range(8), halves(0), strict=False):
                await load.progress(50)
                change = asyncio.ensure_future(admin.split(TOPIC, whole, 2, None, None))
                for _ in range(turn):  # each time a little later
                    await asyncio.sleep(0)
                cut_all(sdk)
                await change
                cut_all(sdk)
                await load.progress(50)
                await admin.merge(TOPIC, list(parts), None)
        verdict = load.verdict(await values(node))
    assert verdict.holds, verdict
    assert verdict.repeated == 0


def cut_all(client: Client) -> None:
    for connection in list(client._pool._connections.values()):
        connection.abort("cut by the test")


async def test_scenario_35_split_is_seen_after_a_lost_layout_session(
    node: Node, admin: ScalableAdmin, sdk: Client
) -> None:
    await admin.create(TOPIC, 1, {})
    async with sdk.producer(TOPIC) as producer:
        await producer.send(b"a", timeout=RETRY_DELAYS)
        cut_all(sdk)
        await admin.split(TOPIC, 0, 2, None, None)
        lanes = {(await producer.send(b"b", key=f"key-{n}", timeout=RETRY_DELAYS)).lane for n in range(10)}
    assert lanes == {1, 2}


async def test_scenario_34_recreated_topic_is_followed(node: Node, admin: ScalableAdmin, sdk: Client) -> None:
    await admin.create(TOPIC, 2, {})
    async with sdk.producer(TOPIC) as producer:
        await producer.send(b"old", timeout=RETRY_DELAYS)
        await admin.delete(TOPIC, True)
        await admin.create(TOPIC, 1, {})
        await producer.send(b"new", timeout=RETRY_DELAYS)
    assert await values(node) == [b"new"]


async def test_scenario_25_chunked_message_across_a_split(node: Node, admin: ScalableAdmin, sdk: Client) -> None:
    await admin.create(TOPIC, 1, {})
    async with sdk.producer(TOPIC, name="shop", chunking=Chunking()) as producer:
        large = b"x" * (12 << 20)
        futures = [producer.send_nowait(large, key=f"key-{n}") for n in range(3)]
        await admin.split(TOPIC, 0, 2, None, None)
        futures += [producer.send_nowait(b"small", key=f"key-{n}") for n in range(3)]
        await producer.flush(timeout=RETRY_DELAYS)
        assert all(future.exception() is None for future in futures)


async def test_send_timeout_holds_without_a_layout(node: Node, admin: ScalableAdmin, sdk: Client) -> None:
    await admin.create(TOPIC, 1, {})
    async with sdk.producer(TOPIC, send_timeout=0.2) as producer:
        await producer.send(b"a", timeout=RETRY_DELAYS)
        await admin.delete(TOPIC, True)
        with pytest.raises(TimedOut):
            await producer.send(b"b", timeout=RETRY_DELAYS)
        await producer.close(timeout=0.1)


async def test_cancelled_sends_do_not_affect_others(node: Node, admin: ScalableAdmin, sdk: Client) -> None:
    await admin.create(TOPIC, 1, {})
    async with sdk.producer(TOPIC, name="shop") as producer:
        load = KeyedLoad(producer)
        async with load.running():
            for _, (whole, parts, _) in zip(range(4), halves(0), strict=False):
                doomed = [asyncio.ensure_future(producer.send(b"none|%d|" % n, key="none")) for n in range(20)]
                await load.progress(20)
                change = asyncio.ensure_future(admin.split(TOPIC, whole, 2, None, None))
                await asyncio.sleep(0)
                for one in doomed:
                    one.cancel()
                await change
                await asyncio.gather(*doomed, return_exceptions=True)
                await admin.merge(TOPIC, list(parts), None)
        verdict = load.verdict([one for one in await values(node) if not one.startswith(b"none")])
    assert verdict.holds, verdict
    assert (verdict.repeated, producer.pending_bytes) == (0, 0)
