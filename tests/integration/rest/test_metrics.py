"""/metrics of a real node: values for real traffic, format, and that it does not block the event loop."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.stats.metrics import FAMILIES
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST
from anabranch.node.node import Node
from anabranch.node.settings.node import NodeSettings
from anabranch.protocol.commands import BaseCommand
from tests.support.traffic.raw_client import RawClient

TOPIC = 'persistent://public/default/a"b'
SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')


def settings(directory: Path, **broker: object) -> NodeSettings:
    default = NodeSettings()
    return replace(
        default,
        storage=replace(default.storage, dir=directory, sync="none"),
        network=replace(default.network, port=0),
        http=replace(default.http, port=0),
        broker=replace(default.broker, **broker),  # type: ignore[arg-type]  # names and values are the test's
    )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(settings(tmp_path)) as running:
        yield running


async def page(node: Node) -> str:
    def fetch() -> str:
        with urllib.request.urlopen(f"{node.http_url}/metrics", timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return str(answer.read().decode())

    return await asyncio.to_thread(fetch)


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Every sample; fails on anything a scraper would refuse."""
    found: dict[tuple[str, str], float] = {}
    typed: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current not in typed, f"{current} begins twice"
            typed[current] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == current, f"{match[1]} stands under {current}"
            assert (match[1], match[2] or "") not in found, f"{line} is there twice"
            found[match[1], match[2] or ""] = float(match[3])
    assert typed == {family.name: family.kind for family in FAMILIES if family.name in typed}
    return found


async def test_metrics_of_real_traffic(node: Node) -> None:
    async with RawClient(node.service_url) as client:
        await client.hello()
        await client.subscribe(TOPIC, "s", permits=2)
        await client.producer(TOPIC)
        for sequence in range(5):
            client.send(sequence, b"12345")
            await client.receipt()
        await client.messages(2)
        found = parsed(await page(node))
        where = r'cluster="standalone",namespace="public/default",topic="persistent://public/default/a\"b"'
        of_topic = {name: value for (name, labels), value in found.items() if labels == where}
        of_subscription = {
            name: value for (name, labels), value in found.items() if labels == where + ',subscription="s"'
        }
        assert of_topic["pulsar_in_messages_total"] == 5
        assert of_topic["pulsar_msg_backlog"] == of_subscription["pulsar_subscription_back_log"] == 5
        assert of_topic["pulsar_producers_count"] == of_topic["pulsar_consumers_count"] == 1
        assert of_topic["pulsar_storage_size"] >= of_topic["pulsar_in_bytes_total"] > 0
        assert of_topic["pulsar_storage_write_latency_count"] == 5, "one at a time: each one is measured"
        assert of_subscription["pulsar_out_messages_total"] == 2
        assert of_subscription["pulsar_subscription_unacked_messages"] == 2
        assert found["pulsar_broker_topics_count", 'cluster="standalone"'] == found["anabranch_topics_loaded", ""] == 1
        assert found["pulsar_topics_count", 'cluster="standalone",namespace="public/default"'] == 1
        assert found["anabranch_connections", ""] == 1
    for _ in range(100):
        after = parsed(await page(node))
        if after["pulsar_consumers_count", where] == 0:
            break
    assert after["pulsar_out_messages_total", where + ',subscription="s"'] == 2, "what went out stays counted"


async def test_clients_between_two_scrapes_are_counted(node: Node) -> None:
    async with RawClient(node.service_url) as client:
        await client.hello()
        await client.producer("t")
        await client.subscribe("t", "s", permits=1)
        client.send(0)
        await client.receipt()
        (position,) = await client.messages(1)
        client.ack(position)
        await client.ask(BaseCommand.CLOSE_CONSUMER, consumer_id=1)
        found = parsed(await page(node))
    where = 'cluster="standalone",namespace="public/default",topic="persistent://public/default/t",subscription="s"'
    assert found["pulsar_subscription_consumers_count", where] == 0
    assert found["pulsar_out_messages_total", where] == 1
    assert found["pulsar_subscription_back_log", where] == 0


async def test_rates_appear_at_second_scrape(node: Node) -> None:
    async with RawClient(node.service_url) as client:
        await client.hello()
        await client.producer("t")
        first = parsed(await page(node))
        for sequence in range(50):
            client.send(sequence)
        for _ in range(50):
            await client.receipt()
        second = parsed(await page(node))
    key = ("pulsar_rate_in", 'cluster="standalone",namespace="public/default",topic="persistent://public/default/t"')
    assert first[key] == 0.0
    assert second[key] > 0
    assert second["pulsar_broker_rate_in", 'cluster="standalone"'] == second[key]


@pytest.mark.parametrize(("per_topic", "most", "rows"), [(True, 3, 3), (False, 3, 0), (True, 10, 5)])
async def test_series_are_bounded_and_sums_stay_right(tmp_path: Path, per_topic: bool, most: int, rows: int) -> None:
    async with (
        Node(settings(tmp_path, metrics_topics=per_topic, metrics_topics_max=most)) as node,
        RawClient(node.service_url) as client,
    ):
        await client.hello()
        for number in range(5):
            await client.producer(f"t{number}", producer_id=number)
            client.send(0, producer_id=number)
            await client.receipt()
        found = parsed(await page(node))
    series = {labels: value for (name, labels), value in found.items() if name == "pulsar_in_messages_total"}
    assert sum("topic=" in labels for labels in series) == rows
    assert sum(series.values()) == 5
    assert found["anabranch_metrics_topics_left_out", ""] == 5 - rows


async def test_metrics_of_many_topics_do_not_block_the_loop(node: Node) -> None:
    """A tiny copy of the measurement with 10,000 topics (benchmarks/micro/metrics.py)."""
    topics = node.services.topics
    for number in range(300):
        name = TopicName.parse(f"t{number}")
        await topics.create(name)
        topic = await topics.get(name, create=False)
        await topic.create_subscription("s", topic.resolve(EARLIEST), {})  # type: ignore[union-attr]  # persistent
    found = parsed(await page(node))
    assert sum(name == "pulsar_subscription_back_log" for name, _ in found) == 300
