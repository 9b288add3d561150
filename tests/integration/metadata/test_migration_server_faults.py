"""The server of a store is killed, stopped or cut off at every step of a migration, as source and as target."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path

import pytest

from anabranch.metadata.interface import ABSENT, StoreUnavailable
from anabranch.metadata.open import bare_store
from anabranch.runtime.clock import SystemClock
from tests import services
from tests.services import Cluster
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.faults.migrating_processes import ENDS_S, MigratingProcess, processes
from tests.support.faults.store_workload import Trial
from tests.support.in_memory.metadata_stores import fresh_url
from tests.support.processes.broker_process import HOST

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("migration")]

FAULT_S = 8.0
"""Longer than the sessions of the migration, and than the deadline of one operation."""
DEADLINE_MS = 3_000
RECORDS = 200
PATH = {"zk": "/mine", "etcd": "/mine", "oxia": "/default/mine"}
STEPS = ("PRE_COPY", "VERIFY_TREE", "CLOSE_GATES", "COPY_CHANGES", "SWITCH")
IN_CI = {("etcd", "target", "COPY_CHANGES", "cut")}
STORIES = [
    pytest.param(*story, marks=() if story in IN_CI else pytest.mark.soak)
    for story in product(("etcd", "zk", "oxia"), ("source", "target"), STEPS, ("kill", "stop", "cut"))
    if story[0] != "oxia" or story[3] != "cut"  # its clients follow the addresses that the server names
]


class Server:
    """One server that the processes reach through a proxy, and its faults."""

    def __init__(self, kind: str, cluster: Cluster, proxy: FaultProxy) -> None:
        self._kind, self._cluster, self._proxy = kind, cluster, proxy

    @property
    def url(self) -> str:
        port = self._cluster.nodes[0].port if self._kind == "oxia" else self._proxy.port
        return f"{self._kind}://{HOST}:{port}{PATH[self._kind]}"

    async def suffer(self, fault: str) -> None:
        (node,) = self._cluster.nodes
        match fault:
            case "kill":
                node.kill9()
                await asyncio.sleep(FAULT_S / 4)
                await asyncio.to_thread(node.start)
            case "stop":
                node.pause()
                await asyncio.sleep(FAULT_S)
                node.resume()
            case _:
                self._proxy.black_hole()
                await asyncio.sleep(FAULT_S)
                await self._proxy.heal()


@asynccontextmanager
async def serving(kind: str, folder: Path) -> AsyncIterator[Server]:
    with services.cluster(kind, folder) as cluster:
        async with FaultProxy(cluster.nodes[0].port) as proxy:
            yield Server(kind, cluster, proxy)


async def reach(step: str, made: list[MigratingProcess], source: str, target: str, held: AsyncExitStack) -> None:
    """The migration is at `step`; what holds it there goes with `held`."""
    mover, bystander = made[0].migration, made[2]
    match step:
        case "PRE_COPY" | "VERIFY_TREE":
            await mover.start(target, rate=RECORDS)
        case "CLOSE_GATES":
            await held.enter_async_context(bystander.store.gate.permit())
            await mover.start(target, rate=0)
        case _:
            tool = await held.enter_async_context(bare_store(source, SystemClock()))
            session = await tool.open_session(30_000)
            await tool.put("/held-by-a-tool", b"", expected=ABSENT, session=session)
            await mover.start(target, rate=0)
            await made[0].wait_step("COPY_CHANGES")
            if step == "SWITCH":
                await held.aclose()
                async with asyncio.timeout(ENDS_S):
                    while (await mover.status())["phase"] != "COMPLETED":  # noqa: ASYNC110 - no event for it
                        await asyncio.sleep(0.001)
            return
    await made[0].wait_step(step)


async def wait_all(made: list[MigratingProcess]) -> str:
    """Every process says the same end."""
    async with asyncio.timeout(ENDS_S):
        while True:
            try:
                phases = {(await one.ended())["phase"] for one in made}
            except StoreUnavailable:  # the server is not back for this process yet
                await asyncio.sleep(0.1)
                continue
            if len(phases) == 1:
                return str(phases.pop())
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(("kind", "side", "step", "fault"), STORIES)
async def test_a_fault_of_a_server_loses_nothing(kind: str, side: str, step: str, fault: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(kind, tmp_path / "server"))
        other = fresh_url("sqlite", tmp_path)
        source, target = (server.url, other) if side == "source" else (other, server.url)
        made = await stack.enter_async_context(processes(source, deadline_ms=DEADLINE_MS))
        stores = [one.store for one in made]
        for number in range(RECORDS):
            await stores[0].put(f"/fixed/{number}", b"%d" % number, expected=ABSENT)
        third = fresh_url("sqlite", tmp_path)

        async def story() -> None:
            async with AsyncExitStack() as held:
                await reach(step, made, source, target, held)
                await server.suffer(fault)
            phase = await wait_all(made)
            if step == "SWITCH":
                assert phase == "COMPLETED"
            status = await made[1].move(third, rate=0)
            assert (status["phase"], status["error"]) == ("COMPLETED", None)

        trial = Trial(stores[:2], stores[2], tree="/registers", deadline_s=30.0, pace_s=0.02)
        await trial.run(story, recover_s=90.0, keeps_session=False)
        async with bare_store(third, SystemClock()) as moved:
            found = {key: one.value async for key, one in moved.scan("/fixed")}
        assert found == {f"/fixed/{number}": b"%d" % number for number in range(RECORDS)}
