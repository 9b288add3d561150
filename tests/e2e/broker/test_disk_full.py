"""A full device (a small tmpfs): producers get errors, readers continue, service recovers, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

import anabranch
from anabranch.client.errors import QuotaExceeded, TimedOut
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_client import new_client

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 MiB. Needs the right to mount."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        reason = f"cannot mount a tmpfs: {mounted.stderr.strip()}"
        if os.environ.get("ANABRANCH_REQUIRE_SERVICES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def publish_until_refused(producer: pulsar.Producer) -> list[bytes]:
    """What was acknowledged before the broker said no."""
    sent: list[bytes] = []
    with pytest.raises(pulsar.PulsarException, match="ProducerBlockedQuotaExceeded"):
        for number in range(1_000):
            body = number.to_bytes(4, "big") + os.urandom(MIB)
            producer.send(body)
            sent.append(body[:4])
    return sent


def test_full_disk_is_reported_and_service_recovers(small_disk: Path) -> None:
    with BrokerProcess(small_disk / "data", arguments=["--set", "storage.log_bytes_max=16MiB"]) as broker:
        broker.log_path.touch()
        client = new_client(broker.service_url)
        keeper = client.subscribe("full", "keeper", initial_position=pulsar.InitialPosition.Earliest)
        acknowledged = publish_until_refused(client.create_producer("full", batching_enabled=False))
        assert acknowledged, "the first message must fit"

        with pytest.raises(pulsar.PulsarException, match="ProducerBlockedQuotaExceeded"):
            client.create_producer("other")
        assert [keeper.receive(30_000).data()[:4] for _ in acknowledged] == acknowledged

        subprocess.run(["mount", "-o", "remount,size=400m", str(small_disk)], check=True)
        assert publish_again(client) == b"back"
        client.close()

        broker.kill9()
        broker.start()
        client = new_client(broker.service_url)
        reader = client.create_reader("full", pulsar.MessageId.earliest)
        found = [reader.read_next(30_000).data()[:4] for _ in range(len(acknowledged) + 1)]
        assert found == [*acknowledged, b"back"]
        client.close()
        broker.stop()


def publish_again(client: pulsar.Client) -> bytes:
    deadline = time.monotonic() + 30
    while True:
        try:
            producer = client.create_producer("full", batching_enabled=False)
            producer.send(b"back")
            return b"back"
        except pulsar.PulsarException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # the broker probes the device by itself


FULL_SECONDS = 7.0  # long enough that growing delays between attempts would exceed a second by far
RESUMED_SECONDS = 2.0  # promised: one; the rest is for a loaded machine


@pytest.mark.parametrize("topic", ["persistent://public/default/full", "topic://public/default/full"])
async def test_sdk_names_the_full_disk_and_resumes_when_there_is_room(small_disk: Path, topic: str) -> None:
    with BrokerProcess(small_disk / "data", arguments=["--set", "storage.log_bytes_max=16MiB"]) as broker:
        broker.log_path.touch()
        async with anabranch.connect(broker.service_url) as client:
            async with client.queue_consumer(topic, subscription="keeper"):
                pass  # keeps all messages on the disk
            producer = await client.producer(topic, batching=None, send_timeout=60)
            with pytest.raises(TimedOut, match="no space left on the device") as caught:
                for _ in range(200):
                    await producer.send(os.urandom(MIB), timeout=5.0)
            assert isinstance(caught.value.__cause__, QuotaExceeded)
            pending = producer.send_nowait(b"back")
            await asyncio.sleep(FULL_SECONDS)
            assert not pending.done()
            subprocess.run(["mount", "-o", "remount,size=400m", str(small_disk)], check=True)
            async with asyncio.timeout(RESUMED_SECONDS):
                await pending
        broker.stop()
