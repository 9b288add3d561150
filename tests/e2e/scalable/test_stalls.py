"""A child waits for the rest of its parent: client, broker, statistics, metric and `watch` of processes show it."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import urllib.request
from typing import Any

import pytest

import anabranch
import anabranch.admin
from anabranch import StreamConsumer
from anabranch.rest.openapi.result_schemas import SCALABLE_STATS, SCALABLE_SUBSCRIPTION
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.in_process_cluster import until
from tests.support.traffic.json_schemas import complaints

pytestmark = pytest.mark.slow

NAME = "public/default/stalled"
TOPIC = f"topic://{NAME}"
SECONDS = 60.0
METRIC = "anabranch_scalable_waiting_segments"


def fetch(broker: BrokerProcess, path: str) -> str:
    with urllib.request.urlopen(f"{broker.http_url}{path}", timeout=SECONDS) as answer:
        text: str = answer.read().decode()
        return text


def metric(broker: BrokerProcess) -> float:
    (line,) = [line for line in fetch(broker, "/metrics").splitlines() if line.startswith(METRIC + "{")]
    return float(line.rsplit(" ", 1)[1])


async def watch_line(process: asyncio.subprocess.Process, part: str) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS):
        while line := (await process.stdout.readline()).decode():
            if part in line:
                return line
    raise AssertionError(f"`watch` ended without {part!r}")


async def test_stalled_segment_is_visible_everywhere_and_reported_once(
    private_broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    broker = private_broker
    async with anabranch.admin.connect(broker.http_url) as admin:
        await admin.scalable_topics.create(TOPIC)
        # two consumers of one segment are a reason to split it, and the test splits by hand
        await admin.scalable_topics.set_auto_scale_policy(TOPIC, {"enabled": False})
    async with (
        anabranch.admin.connect(broker.http_url) as admin,
        anabranch.connect(broker.service_url) as client,
        client.stream_consumer(TOPIC, subscription="s", name="a", start="earliest") as first,
        client.stream_consumer(TOPIC, subscription="s", name="b", start="earliest") as second,
        client.queue_consumer(TOPIC, subscription="queue"),
        client.producer(TOPIC) as producer,
    ):
        for number in range(12):
            await producer.send(b"%d" % number, key=f"key-{number}")
        reader, messages = await one_that_reads(first, second)
        while len(messages) < 12:
            message = await reader.receive(timeout=SECONDS)
            assert message is not None
            messages.append(message)
        await reader.ack_cumulative(messages[9])
        watch = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "anabranch", "watch", NAME, "--admin-url", broker.http_url, "--every", "0.2"),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            await watch_line(watch, "epoch 0")
            await admin.scalable_topics.split(TOPIC, 0)
            await until(lambda: metric(broker) == 1)
            stats = json.loads(fetch(broker, f"/admin/v2/scalable/{NAME}/stats"))
            assert complaints(stats, SCALABLE_STATS) == []
            ((waiting, ancestors),) = stats["subscriptions"]["s"]["waiting"].items()
            assert ancestors == [0] and stats["subscriptions"]["queue"]["waiting"] == {}
            one = json.loads(fetch(broker, f"/admin/v2/scalable/{NAME}/subscriptions/s"))
            assert complaints(one, SCALABLE_SUBSCRIPTION) == []
            assert one["waiting"] == {waiting: [0]}
            text = f"segments {waiting} wait until 2 messages of 0 are acknowledged"
            assert text in await watch_line(watch, "wait until")
            warning = f"2 messages are not acknowledged; segments {waiting} wait for them"
            await until(lambda: warning in caplog.text and warning in broker.log_path.read_text())
            await reader.ack_cumulative(messages[-1])
            await until(lambda: metric(broker) == 0)
            assert caplog.text.count(warning) == broker.log_path.read_text().count(warning) == 1
        finally:
            watch.kill()
            await watch.wait()


async def one_that_reads(first: StreamConsumer, second: StreamConsumer) -> tuple[StreamConsumer, list[Any]]:
    """The consumer that has segment 0, and its first message."""
    waits = {asyncio.ensure_future(one.receive(timeout=SECONDS)): one for one in (first, second)}
    done, idle = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for one in idle:
        one.cancel()
    await asyncio.gather(*idle, return_exceptions=True)
    (found,) = done
    return waits[found], [found.result()]
