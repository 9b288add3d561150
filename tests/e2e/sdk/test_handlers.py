"""`consumer.run` against a real broker process: splits, kill -9 of the application, threads, interrupts."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import anabranch
import anabranch.admin
from anabranch import Backoff, DeadLetter, Message, Retry
from anabranch.client.errors import BadOption, HandlerFailed
from tests.support.processes.broker_process import BrokerProcess

DEADLINE = 30.0
KEYS, PER_KEY = 8, 60
WORKER = Path(__file__).parents[2] / "support" / "processes" / "handler_child.py"


async def publish(client: anabranch.Client, topic: str, first: int, after: int) -> None:
    async with client.producer(topic) as producer:
        for number in range(first, after):
            for key in range(KEYS):
                producer.send_nowait(b"%d" % number, key=f"k{key}")
        await producer.flush(DEADLINE)


async def test_stream_handlers_keep_every_key_in_order_through_a_split(broker: BrokerProcess) -> None:
    topic = "topic://public/default/handlers-split"
    seen: defaultdict[str, list[int]] = defaultdict(list)
    active: Counter[str] = Counter()
    finished = asyncio.Event()

    async def handle(message: Message) -> None:
        key = str(message.key)
        active[key] += 1
        assert active[key] == 1, f"{key} is processed twice at once"
        await asyncio.sleep(0.002)
        active[key] -= 1
        seen[key].append(int(message.value))
        if sum(map(len, seen.values())) == KEYS * PER_KEY:
            finished.set()

    async with anabranch.connect(broker.service_url) as client, anabranch.admin.connect(broker.http_url) as admin:
        await publish(client, topic, 0, PER_KEY // 2)
        async with client.stream_consumer(topic, subscription="s", start="earliest") as consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=6))
            await admin.scalable_topics.split(topic, 0)
            await publish(client, topic, PER_KEY // 2, PER_KEY)
            await asyncio.wait_for(finished.wait(), DEADLINE)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert dict(seen) == {f"k{key}": list(range(PER_KEY)) for key in range(KEYS)}
        async with client.stream_consumer(topic, subscription="s", start="earliest") as consumer:
            assert await consumer.receive(timeout=0.5) is None, "everything was acknowledged"


async def test_queue_handler_that_keeps_failing_ends_as_a_dead_letter(broker: BrokerProcess, topic: str) -> None:
    tried: Counter[bytes] = Counter()

    async def handle(message: Message) -> None:
        tried[message.value] += 1
        if message.value == b"3":
            raise ValueError("three")

    async with anabranch.connect(broker.service_url) as client:
        policy = DeadLetter(max_redeliveries=2, topic=f"{topic}-dead", initial_subscription="i")
        async with (
            client.producer(topic, batching=None) as producer,
            client.queue_consumer(topic, subscription="s", start="earliest", dead_letter=policy) as consumer,
        ):
            for number in range(6):
                await producer.send(b"%d" % number, timeout=DEADLINE)
            running = asyncio.create_task(consumer.run(handle, retry=Backoff(initial=0.05, maximum=0.1)))
            async with client.queue_consumer(f"{topic}-dead", subscription="i", start="earliest") as dead:
                letter = await dead.receive(timeout=DEADLINE)
                assert letter is not None
                assert letter.value == b"3"
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert tried == Counter({b"3": 3, **{b"%d" % number: 1 for number in (0, 1, 2, 4, 5)}})


def test_blocking_handlers_run_on_as_many_threads_as_asked(broker: BrokerProcess, topic: str) -> None:
    are_together = threading.Event()
    together = threading.Barrier(4, are_together.set)
    threads: set[str] = set()

    def handle(message: Message) -> None:
        threads.add(threading.current_thread().name)
        together.wait(DEADLINE)  # passes only if four handlers run at once

    with anabranch.blocking.connect(broker.service_url) as client:
        with client.producer(topic) as producer:
            for number in range(4):
                producer.send(b"%d" % number)
        consumer = client.queue_consumer(topic, subscription="s", start="earliest")
        working = threading.Thread(target=consumer.run, args=(handle,), kwargs={"concurrency": 4})
        working.start()
        assert are_together.wait(DEADLINE)
        consumer.close()
        working.join(DEADLINE)
        assert not working.is_alive()
        assert len(threads) == 4


def test_blocking_stream_handler_that_keeps_failing_raises_in_the_caller(broker: BrokerProcess, topic: str) -> None:
    def handle(message: Message) -> None:
        raise ValueError(message.value)

    with anabranch.blocking.connect(broker.service_url) as client:
        with client.producer(topic) as producer:
            producer.send(b"x")
        with client.stream_consumer(topic, subscription="s", start="earliest") as consumer:
            with pytest.raises(HandlerFailed) as failure:
                consumer.run(handle, retry=anabranch.Retry(attempts=2, backoff=Backoff(initial=0.01)))
            assert isinstance(failure.value.__cause__, ValueError)


def test_interrupted_blocking_run_acknowledges_what_its_handlers_finish(broker: BrokerProcess, topic: str) -> None:
    with anabranch.blocking.connect(broker.service_url) as client:
        with client.producer(topic, batching=None) as producer:
            for number in range(20):
                producer.send(b"%d" % number)
        child = subprocess.Popen(
            [sys.executable, str(WORKER), broker.service_url, topic], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            started = [child.stdout.readline().split() for _ in range(2)]
            child.send_signal(signal.SIGINT)
            rest, _ = child.communicate(timeout=DEADLINE)
        finally:
            child.kill()
        assert [what for what, _ in started] == ["begin", "begin"]
        assert rest.splitlines()[-1] == "interrupted"
        lines = [*started, *(line.split() for line in rest.splitlines()[:-1])]
        begun = {number for what, number in lines if what == "begin"}
        ended = {number for what, number in lines if what == "end"}
        assert begun == ended, "handlers that ran have finished"
        with client.queue_consumer(topic, subscription="s", start="earliest") as consumer:
            left = set()
            while (message := consumer.receive(timeout=1.0)) is not None:
                left.add(message.value.decode())
        assert left == {str(number) for number in range(20)} - ended


async def test_wrong_arguments_of_run_are_refused_at_the_call(broker: BrokerProcess) -> None:
    """A `Retry` for a queue, or a `Backoff` for a stream, failed when the first handler did, and nothing ended then."""
    handler: Any = print
    topic = "topic://public/default/handlers-arguments"
    async with (
        anabranch.connect(broker.service_url) as client,
        client.queue_consumer(topic, subscription="q") as queue,
        client.stream_consumer(topic, subscription="s") as stream,
    ):
        consumers: list[Any] = [queue, stream]
        for consumer, retry in zip(consumers, (Retry(), Backoff()), strict=True):
            for name, wrong in (("retry", retry), ("concurrency", "x"), ("concurrency", 0)):
                with pytest.raises(BadOption, match=name):
                    await consumer.run(handler, **{name: wrong})
            with pytest.raises(BadOption, match="handler"):
                await consumer.run(5)
