"""Stores on real servers under faults: histories stay linearizable, and everything recovers without help.

Every scenario also checks that no operation exceeds its deadline, that writes reported as not done were not done, that
ephemeral keys survive, and that mirrors converge. ANABRANCH_FAULT_ROUNDS makes it longer (`make soak`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from anabranch.metadata.interface import ANY, SessionEvent, SessionLost, StoreUnavailable
from tests import services
from tests.services import Cluster
from tests.support.faults.fault_proxy import Flow, Lane
from tests.support.faults.faulty_servers import BEYOND_S, DEADLINE_S, FaultWorld, make_store
from tests.support.faults.store_workload import SLACK_S, Trial, eventually, fresh, insist, now, opened

ROUNDS = int(os.environ.get("ANABRANCH_FAULT_ROUNDS", "1"))
CLIENTS = 2
CLUSTERS = {"zk-1": ("zk", 1), "zk-3": ("zk", 3), "etcd-3": ("etcd", 3), "oxia-1": ("oxia", 1)}
TTL_MS = 2_000


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(f"faults-{name}")) for name in CLUSTERS]
)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kind, size = CLUSTERS[request.param]
    with services.cluster(kind, tmp_path_factory.mktemp(request.param), size) as started:
        yield started


async def cut(world: FaultWorld) -> None:
    for _ in range(4):
        world.cut()
        await asyncio.sleep(0.1)


async def cut_in_mid_request(world: FaultWorld) -> None:
    for count in (1, 9, 30, 60, 120):
        await _cut_after(world, world.ups, count)


async def answer_lost(world: FaultWorld) -> None:
    for count in (0, 0, 5, 0, 20, 0, 0, 0):
        await _cut_after(world, world.downs, count)


async def _cut_after(world: FaultWorld, lanes: list[Lane], count: int) -> None:
    for lane in lanes:
        lane.cut_after = count
    await asyncio.sleep(0.1)
    await world.heal()


async def requests_late(world: FaultWorld) -> None:
    await _for_a_while(world, world.ups, delay_s=BEYOND_S)


async def answers_late(world: FaultWorld) -> None:
    await _for_a_while(world, world.downs, delay_s=BEYOND_S)


async def slow(world: FaultWorld) -> None:
    await _for_a_while(world, world.ups + world.downs, delay_s=0.1)


async def black_hole(world: FaultWorld) -> None:
    await _for_a_while(world, world.ups + world.downs, Flow.LOSE)


async def requests_lost(world: FaultWorld) -> None:
    await _for_a_while(world, world.ups, Flow.LOSE)


async def answers_lost(world: FaultWorld) -> None:
    await _for_a_while(world, world.downs, Flow.LOSE)


async def held_and_delivered(world: FaultWorld) -> None:
    """Requests arrive long after their senders timed out."""
    await _for_a_while(world, world.ups, Flow.HOLD)


async def _for_a_while(world: FaultWorld, lanes: list[Lane], flow: Flow = Flow.PASS, delay_s: float = 0.0) -> None:
    for lane in lanes:
        lane.flow, lane.delay_s = flow, delay_s
    await asyncio.sleep(BEYOND_S)
    await world.heal()


async def half_closed_to_the_server(world: FaultWorld) -> None:
    for proxy in world.proxies:
        proxy.half_close(proxy.up)


async def half_closed_to_the_client(world: FaultWorld) -> None:
    for proxy in world.proxies:
        proxy.half_close(proxy.down)


async def refused(world: FaultWorld) -> None:
    world.refuse()
    await asyncio.sleep(BEYOND_S)
    await world.heal()


async def flapping(world: FaultWorld) -> None:
    for _ in range(6):
        proxy = world.chance.choice(world.proxies)
        proxy.refuse()
        await asyncio.sleep(0.08)
        await proxy.accept()
        await asyncio.sleep(0.04)


async def leader_killed(world: FaultWorld) -> None:
    leader = await world.leader()
    leader.kill9()
    await asyncio.sleep(0.5)
    await world.start(leader)


async def leader_paused(world: FaultWorld) -> None:
    leader = await world.leader()
    leader.pause()
    await asyncio.sleep(BEYOND_S)
    leader.resume()


async def server_restarted(world: FaultWorld) -> None:
    node = world.chance.choice(world.nodes)
    await world.stop(node)
    await world.start(node)


async def rolling_kills(world: FaultWorld) -> None:
    for node in world.nodes:
        node.kill9()
        await world.start(node)


NETWORK_FAULTS = (
    cut,
    cut_in_mid_request,
    answer_lost,
    half_closed_to_the_server,
    half_closed_to_the_client,
    flapping,
    slow,
    requests_late,
    answers_late,
    black_hole,
    requests_lost,
    answers_lost,
    held_and_delivered,
    refused,
)
TOGETHER = 7
BATCHES = [NETWORK_FAULTS[start : start + TOGETHER] for start in range(0, len(NETWORK_FAULTS), TOGETHER)]
UNANSWERED = {requests_late, answers_late, black_hole, requests_lost, answers_lost, refused}
SERVER_FAULTS = (leader_killed, leader_paused, server_restarted, rolling_kills)
Scenario = Callable[[FaultWorld], Awaitable[None]]


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"{batch[0].__name__}-and-{len(batch) - 1}-more")
async def test_network_faults(cluster: Cluster, batch: tuple[Scenario, ...], seed: int) -> None:
    """Each has its own clients, proxies and keys, so they run concurrently on one cluster."""
    if ROUNDS == 1 and cluster.scheme == "zk" and len(cluster.nodes) == 1:
        batch = batch[:2]  # in the short form: it adds little to the ensemble
    await side_by_side({one.__name__: try_out(cluster, one, seed, pace_s=0.02) for one in batch})


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("scenario", SERVER_FAULTS)
async def test_server_faults(cluster: Cluster, scenario: Scenario, seed: int) -> None:
    await try_out(cluster, scenario, seed, pace_s=0.01)


async def side_by_side(work: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run all concurrently to the end; failures name their scenario."""
    failures = []
    for name, outcome in zip(work, await asyncio.gather(*work.values(), return_exceptions=True), strict=True):
        if isinstance(outcome, Exception):
            outcome.add_note(f"scenario: {name}")
            failures.append(outcome)
    if failures:
        raise ExceptionGroup("scenarios failed", failures)


async def try_out(cluster: Cluster, scenario: Scenario, seed: int, pace_s: float) -> None:
    async with FaultWorld(cluster, seed) as world, AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(world.make_store())) for _ in range(CLIENTS)]
        witness = await stack.enter_async_context(opened(world.make_witness()))
        trial = Trial(stores, witness, tree="/reg", deadline_s=DEADLINE_S, seed=seed, pace_s=pace_s, lanes=3)
        record = await trial.run(lambda: scenario(world))
    if scenario in UNANSWERED:
        assert record.unknown + record.refused > 0, "the scenario did not bite"


async def a_session_expires_while_its_owner_is_cut_off(cluster: Cluster) -> None:
    """Its keys are deleted, not before `valid_until`; it is notified; a write with it is refused."""
    async with (
        FaultWorld(cluster) as world,
        opened(world.make_store()) as store,
        opened(world.make_witness()) as witness,
    ):
        session = await insist(lambda: store.open_session(TTL_MS))
        events: list[SessionEvent] = []
        session.listen(events.append)
        version = await insist(lambda: store.put("/held", b"1", expected=ANY, session=session))
        world.refuse()

        async def is_gone() -> bool:
            return await fresh(witness, "/held") is None

        await eventually("the key is gone", is_gone, session.ttl_ms / 1000 + 0.5 + SLACK_S)
        assert session.valid_until <= now(), "its holder was still sure of it"
        await world.heal()
        await asyncio.wait_for(session.wait_lost(), 20)
        assert events[-1] is SessionEvent.LOST and events.count(SessionEvent.LOST) == 1
        with pytest.raises(SessionLost):
            await store.put("/held", b"2", expected=version, session=session)
        again = await insist(lambda: store.open_session(TTL_MS))
        await insist(lambda: store.put("/held", b"3", expected=ANY, session=again))
        found = await fresh(witness, "/held")
        assert found is not None and found.ephemeral


async def a_session_lives_on_over_a_short_cut(cluster: Cluster) -> None:
    async with (
        FaultWorld(cluster) as world,
        opened(world.make_store()) as store,
        opened(world.make_witness()) as witness,
    ):
        session = await insist(lambda: store.open_session(3 * TTL_MS))
        events: list[SessionEvent] = []
        session.listen(events.append)
        version = await insist(lambda: store.put("/held", b"1", expected=ANY, session=session))
        began = now()
        while now() < began + 1.3 * session.ttl_ms / 1000:
            world.cut()
            await asyncio.sleep(0.5)
        found = await fresh(witness, "/held")
        assert found is not None and found.version == version
        assert not session.is_lost and SessionEvent.LOST not in events
        await insist(lambda: store.put("/held", b"2", expected=version, session=session))


async def open_fails_in_time_and_works_when_the_server_is_there(cluster: Cluster) -> None:
    async with FaultWorld(cluster) as world:
        for fault in (world.refuse, world.black_hole):
            fault()
            store = world.make_store()
            with pytest.raises(StoreUnavailable):
                async with asyncio.timeout(2 * DEADLINE_S + SLACK_S):
                    await store.open()
            await world.heal()
            async with asyncio.timeout(20):
                await insist(store.open)
            await insist(partial(store.put, "/opened", b"", expected=ANY))
            await store.close()


async def close_does_not_wait_for_a_dead_server(cluster: Cluster) -> None:
    async with FaultWorld(cluster) as world:
        store = world.make_store()
        await insist(store.open)
        session = await insist(lambda: store.open_session(TTL_MS))
        await insist(lambda: store.put("/held", b"", expected=ANY, session=session))
        watch = store.watch("/")
        world.black_hole()
        async with asyncio.timeout(2 * DEADLINE_S + SLACK_S):
            await store.close()
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
        assert session.is_lost


async def an_unreachable_server_among_others_is_passed_over(cluster: Cluster) -> None:
    if len(cluster.nodes) == 1:
        return
    async with FaultWorld(cluster) as world:
        world.proxies[0].refuse()
        world.proxies[1].black_hole()
        addresses = [f"127.0.0.1:{proxy.port}" for proxy in world.proxies]
        async with make_store(cluster.scheme, addresses, "/passed-over", deadline_s=10.0) as store:
            await store.put("/a", b"", expected=ANY)


async def test_sessions_and_stores_under_faults(cluster: Cluster) -> None:
    """Run concurrently, because they mostly wait."""
    lives = (
        a_session_expires_while_its_owner_is_cut_off,
        a_session_lives_on_over_a_short_cut,
        open_fails_in_time_and_works_when_the_server_is_there,
        close_does_not_wait_for_a_dead_server,
        an_unreachable_server_among_others_is_passed_over,
    )
    await side_by_side({life.__name__: life(cluster) for life in lives})
