"""Three brokers move from store to store while writers of every kind work: policies, schemas, splits, topics, sessions.

What was confirmed to a writer is there at the end; what was refused may be tried again.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.metadata.interface import ABSENT
from anabranch.metadata.open import bare_store
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.metadata_stores import fresh_url
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, RestRefused, rest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

ROOT = "/admin/v2/metadata/migration"
SCALABLE = "/admin/v2/scalable/public/default"
SPLITS_MAX = 30
LOAD_S = 1.0
ENDS_S = 120.0
Tree = dict[str, tuple[bytes, int, int, int]]


class Writer(threading.Thread):
    """Calls `step(number, broker)` again and again; a step that raises was not confirmed."""

    def __init__(self, cluster: ClusterProcesses, step: Callable[[int, BrokerProcess], None], pause_s: float) -> None:
        super().__init__()
        self._cluster, self._step, self._pause_s = cluster, step, pause_s
        self._end = threading.Event()
        self.error: BaseException | None = None
        self.confirmed = 0

    def run(self) -> None:
        number = 0
        while not self._end.wait(self._pause_s):
            brokers = self._cluster.alive
            try:
                self._step(number, brokers[number % len(brokers)])
            except (OSError, RestRefused):
                pass  # not confirmed
            except BaseException as error:
                self.error = error
                return
            else:
                self.confirmed += 1
            number += 1

    def stop(self) -> None:
        self._end.set()
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        assert self.confirmed, f"{self._step} never succeeded"


class Work:
    """What each kind of writer has confirmed."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        self.topics: set[str] = set()
        self.deleted: set[str] = set()
        self.policies: dict[str, int] = {}
        self.possible: dict[str, set[int]] = {}
        self.schemas: list[int] = []
        self.splits = 0
        self.split_tries = 0

    def create_topics(self, number: int, broker: BrokerProcess) -> None:
        rest(broker, "PUT", f"/admin/v2/persistent/public/default/made-{number}")
        self.topics.add(f"made-{number}")
        if number % 5 == 4:
            gone = f"made-{number}"
            self.topics.discard(gone)  # whatever the answer
            rest(broker, "DELETE", f"/admin/v2/persistent/public/default/{gone}")
            self.deleted.add(gone)

    def set_policies(self, number: int, broker: BrokerProcess) -> None:
        name = f"ns{number % 3}"
        self.possible.setdefault(name, set()).add(number + 1)
        body = {"retentionTimeInMinutes": number + 1, "retentionSizeInMB": -1}
        rest(broker, "POST", f"/admin/v2/namespaces/public/{name}/retention", body)
        self.policies[name], self.possible[name] = number + 1, set()

    def add_schemas(self, number: int, broker: BrokerProcess) -> None:
        fields = [{"name": f"f{one}", "type": ["null", "int"], "default": None} for one in range(number + 1)]
        schema = json.dumps({"type": "record", "name": "r", "fields": fields})
        body = {"type": "AVRO", "schema": schema, "properties": {}}
        found = rest(broker, "POST", "/admin/v2/schemas/public/default/typed/schema", body)
        self.schemas.append(found["version"]["version"])

    def split(self, number: int, broker: BrokerProcess) -> None:
        if self.split_tries >= SPLITS_MAX:
            return
        layout = rest(broker, "GET", f"{SCALABLE}/orders")
        active = [one for one in layout["segments"].values() if one["active"]]
        widest = max(active, key=lambda one: one["hashRange"]["end"] - one["hashRange"]["start"])
        self.split_tries += 1
        rest(broker, "POST", f"{SCALABLE}/orders/split/{widest['segmentId']}", within_s=30)
        self.splits += 1

    def check(self) -> None:
        for broker in self.cluster.brokers.values():
            listed = rest(broker, "GET", "/admin/v2/persistent/public/default", within_s=30)
            names = {name.rpartition("/")[2] for name in listed}
            assert self.topics <= names, sorted(self.topics - names)[:5]
            assert not self.deleted & names
            for name, number in self.policies.items():
                found = rest(broker, "GET", f"/admin/v2/namespaces/public/{name}/retention")
                assert found["retentionTimeInMinutes"] in {number, *self.possible[name]}, name
            stored = rest(broker, "GET", "/admin/v2/schemas/public/default/typed/schemas")["getSchemaResponses"]
            versions = [one["version"] for one in stored]
            assert versions == list(range(len(versions)))
            assert self.schemas == sorted(set(self.schemas)) and set(self.schemas) <= set(versions)
            layout = rest(broker, "GET", f"{SCALABLE}/orders")
            active = sorted(
                (one["hashRange"]["start"], one["hashRange"]["end"])
                for one in layout["segments"].values()
                if one["active"]
            )
            assert self.splits <= len(active) - 1 <= self.split_tries
            assert active[0][0] == 0 and active[-1][1] == 0xFFFF
            assert all(one[1] + 1 == other[0] for one, other in pairwise(active))


class Traffic(threading.Thread):
    """A keyed producer, a stream consumer that stays, and one that joins and leaves: sessions and assignments."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self._end = url, threading.Event()
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.joined = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.error = error

    async def _run(self) -> None:
        async with (
            anabranch.connect(self._url) as client,
            client.producer("topic://public/default/orders") as producer,
            asyncio.TaskGroup() as group,
        ):
            staying = group.create_task(self._consume(client, "stays"))
            joining = group.create_task(self._join(client))
            number = 0
            while not self._end.is_set():
                data = b"%d" % number
                await producer.send(data, key=f"k{number % 20}")
                self.sent.append(data)
                number += 1
                await asyncio.sleep(0.005)
            await joining
            async with asyncio.timeout(ENDS_S):
                while set(self.received) != set(self.sent):  # noqa: ASYNC110 - no event for it
                    await asyncio.sleep(0.1)
            staying.cancel()

    async def _consume(self, client: anabranch.Client, name: str, count: int | None = None) -> None:
        topic = "topic://public/default/orders"
        async with client.stream_consumer(topic, subscription="s", name=name, start="earliest") as consumer:
            while count is None or count:
                message = await consumer.receive(timeout=0.5)
                if message is not None:
                    self.received.append(bytes(message.data))
                    await consumer.ack_cumulative(message)
                if count is not None:
                    count -= 1

    async def _join(self, client: anabranch.Client) -> None:
        while not self._end.is_set():
            await self._consume(client, f"joins-{self.joined % 3}", 40)
            self.joined += 1

    def stop(self) -> None:
        self._end.set()
        self.join(2 * ENDS_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        assert self.joined


async def read_tree(url: str, below: str) -> Tree:
    async with bare_store(url, SystemClock()) as store:
        await store.sync()
        return {k: (v.value, v.version, v.created_ms, v.modified_ms) async for k, v in store.scan(below)}


async def write_fixed(url: str) -> Tree:
    async with bare_store(url, SystemClock()) as store:
        for number in range(200):
            await store.put(f"/fixed/{number}", b"%d" % number, expected=ABSENT)
    return await read_tree(url, "/fixed")


def status(broker: BrokerProcess) -> Any:
    with suppress(OSError, RestRefused):
        return rest(broker, "GET", f"{ROOT}/status", within_s=30)
    return {"phase": None}


def move(broker: BrokerProcess, target: str) -> Any:
    rest(broker, "POST", f"{ROOT}/start", {"targetUrl": target}, within_s=60)
    deadline = time.monotonic() + ENDS_S
    while not (found := status(broker)).get("allSwitched"):
        assert found["phase"] != "FAILED" and time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("sqlite", "etcd", "sqlite"), id="there-and-back"),
        pytest.param(("sqlite", "zk", "etcd", "oxia", "sqlite"), id="all-stores", marks=pytest.mark.soak),
    ],
)
def test_a_chain_of_stores_under_writers_of_every_kind(kinds: tuple[str, ...], tmp_path: Path) -> None:
    urls = [fresh_url(kind, tmp_path) for kind in kinds]
    fixed = asyncio.run(write_fixed(urls[0]))
    with ExitStack() as stack:
        cluster = stack.enter_context(ClusterProcesses(tmp_path, 3, metadata_url=urls[0], session_ms=5_000))
        brokers = list(cluster.brokers.values())
        for number in range(3):
            rest(brokers[0], "PUT", f"/admin/v2/namespaces/public/ns{number}")
        rest(brokers[0], "PUT", "/admin/v2/persistent/public/default/typed")
        rest(brokers[0], "PUT", f"{SCALABLE}/orders?numInitialSegments=1")
        rest(brokers[0], "POST", f"{SCALABLE}/orders/autoScalePolicy", {"enabled": False})  # all splits are counted
        work = Work(cluster)
        writers = [
            Writer(cluster, work.create_topics, 0.03),
            Writer(cluster, work.set_policies, 0.03),
            Writer(cluster, work.add_schemas, 0.1),
            Writer(cluster, work.split, 0.4),
        ]
        traffic = Traffic(cluster.service_url)
        for one in (*writers, traffic):
            one.start()
        blocked: list[float] = []
        try:
            for count, url in enumerate(urls[1:]):
                time.sleep(LOAD_S)  # the load itself
                found = move(brokers[count % 3], url)
                assert set(found["participants"].values()) == {"SWITCHED"} and len(found["participants"]) == 3
                blocked.append(found["blockedSeconds"])
                assert asyncio.run(read_tree(url, "/fixed")) == fixed, url
            time.sleep(LOAD_S)
        finally:
            for one in writers:
                one.stop()
            traffic.stop()
        assert len(traffic.received) >= len(traffic.sent) > 0
        assert work.splits
        work.check()
        assert asyncio.run(read_tree(urls[-1], "/fixed")) == fixed
        again = brokers[1]
        again.kill9()
        again.start()  # with the first URL
        cluster.wait_settled()
        work.check()
        assert max(blocked) < 10, blocked
