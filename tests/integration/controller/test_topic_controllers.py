"""The shells of the controller on a memory store: loading, terms, leader changes, garbage, faults. Simulated time."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller.events import NotLeading, TopicGone
from anabranch.controller.interface import LedElsewhere, Registration, Start, SubscriptionKind, TopicExists
from anabranch.controller.namespace_rules import MINUTE_MS
from anabranch.controller.records.keys import TERM_FLOOR, pending_key, term_key
from anabranch.controller.records.topic_record import Outcome
from anabranch.controller.segment_host import HostUnavailable, StaleTerm
from anabranch.controller.topic.leader_terms import LeaderTerms
from anabranch.controller.topic.operation_events import SplitCall
from anabranch.model.errors import Error
from anabranch.model.layout import Layout
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.position import Position
from anabranch.model.segment import TooManySegments, backing_topic
from tests.support.in_memory.controllers import TOPIC, Brokers, Link
from tests.support.in_memory.simulated_loop import run_simulated

EARLIEST, STREAM = Start.EARLIEST, SubscriptionKind.STREAM


def test_topic_is_loaded_on_use_and_unloaded_when_idle() -> None:
    async def story() -> None:
        async with Brokers("a", idle_seconds=5.0, sweep_seconds=5.0) as brokers:
            a = brokers.controllers["a"]
            for number in range(20):
                await a.create(TOPIC.parse(f"topic://public/default/t{number}"), 2, {})
            assert len(a.controllers) == 20
            tasks = len(asyncio.all_tasks())
            await brokers.until(lambda: len(a.controllers) == 0)
            assert len(asyncio.all_tasks()) < tasks
            assert not [key for key in await brokers.store.children("/controllers") if key == "wanted"]
            assert await a.split(TOPIC.parse("topic://public/default/t7"), 0) == 1  # back by itself
            assert len(a.controllers) == 1

    run_simulated(story())


def test_terms_grow_per_name_across_deletion() -> None:
    async def story() -> None:
        async with Brokers("a", "b") as brokers:
            terms = []
            for life in range(3):
                a = brokers.lead("a")
                await a.create(TOPIC, 1, {})
                b = brokers.lead("b")
                await b.split(TOPIC, 0)
                record = brokers.record()
                assert record is not None
                terms.append((record.incarnation, record.leader_term))
                await b.delete(TOPIC)
                assert await brokers.store.get(scalable_topic_key(TOPIC)) is None
                assert await brokers.store.get(term_key(TOPIC)) is None, f"left behind by life {life}"
                assert await brokers.store.get(pending_key(TOPIC)) is None
                assert brokers.shelf.segments == {}
            assert [term for _, term in terms] == sorted({term for _, term in terms})
            assert len({incarnation for incarnation, _ in terms}) == 3
            assert await brokers.store.get(TERM_FLOOR) is not None

    run_simulated(story())


def test_concurrent_leaders_acquire_different_terms() -> None:
    async def story() -> None:
        async with Brokers("a", seed=3, trouble=0.4) as brokers:
            offices = [LeaderTerms(brokers.store, name) for name in "abcdefgh"]

            async def take(one: LeaderTerms) -> int | None:
                try:
                    return await one.acquire(TOPIC, 0)
                except Error:
                    return None  # the outcome is unknown, so the term is not used

            taken = [term for term in await asyncio.gather(*map(take, offices * 5)) if term is not None]
            assert len(taken) == len(set(taken)) > 5

    run_simulated(story())


def test_former_leader_that_is_unaware_changes_nothing() -> None:
    async def story() -> None:
        async with Brokers("a", "b") as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            brokers.places["a"].believes = True  # frozen past its session: it does not know that b leads now
            old = a.controllers.leading(TOPIC)
            assert old is not None
            b = brokers.lead("b")
            assert await b.split(TOPIC, 0, operation_id="b") == 1
            with pytest.raises(NotLeading):
                await old.ask(SplitCall("a", 0))
            record = brokers.record()
            assert record is not None
            assert record.last_operation is not None
            assert (record.epoch, record.last_operation.operation_id) == (1, "b")
            brokers.places["a"].believes = False
            with pytest.raises(LedElsewhere):
                await a.split(TOPIC, 1)

    run_simulated(story())


@pytest.mark.parametrize("step", ["put /topics", "Create 1", "Create 2", "Seal 0", "put /topics:2", "put /topics:3"])
def test_next_leader_finishes_an_operation_after_a_crash(step: str) -> None:
    """The leader crashes before its n-th write of the record, or before a request to an owner."""

    async def story() -> None:
        async with Brokers("a", "b") as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await a.subscribe(TOPIC, "s", STREAM, EARLIEST)
            word, _, number = step.partition(":")
            left = int(number or 1)
            died = asyncio.Event()

            def before(what: str) -> None:
                nonlocal left
                if what.startswith(word) and (word != "put /topics" or what == f"put {scalable_topic_key(TOPIC)}"):
                    left -= 1
                    if left == 0:
                        died.set()
                        raise asyncio.CancelledError

            brokers.faults.before = before
            asking = asyncio.ensure_future(a.split(TOPIC, 0, operation_id="op"))
            waiting = asyncio.ensure_future(died.wait())
            await asyncio.wait((asking, waiting), return_when=asyncio.FIRST_COMPLETED)
            brokers.faults.before = None
            if died.is_set():
                await brokers.kill("a")
            waiting.cancel()
            b = brokers.lead("b")
            assert await b.split(TOPIC, 0, operation_id="op") == 1  # the same operation, on both leaders
            record = brokers.record()
            assert record is not None
            assert [one.segment_id for one in record.layout.active] == [1, 2]
            assert record.outcome("op") is Outcome.COMMITTED
            names = {backing_topic(TOPIC, one) for one in record.segments.values()}
            assert set(brokers.shelf.segments) == names  # no orphan
            assert all("s" in one.cursors for one in brokers.shelf.segments.values())
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    run_simulated(story())


def test_interrupted_operation_is_resumed_without_a_call() -> None:
    async def story() -> None:
        async with Brokers("a", "b") as brokers:
            a = brokers.controllers["a"]
            for number in range(30):  # other topics, which must not be loaded
                await a.create(TOPIC.parse(f"topic://public/default/t{number}"), 1, {})
            await a.create(TOPIC, 1, {})

            def before(what: str) -> None:
                if what.startswith("Seal"):
                    raise asyncio.CancelledError

            brokers.faults.before = before
            asking = asyncio.ensure_future(a.split(TOPIC, 0))
            await brokers.until(lambda: (record := brokers.record()) is not None and record.operation is not None)
            brokers.faults.before = None
            await brokers.kill("a")
            b = brokers.lead("b")
            await brokers.until(lambda: (record := brokers.record()) is not None and record.epoch == 1)
            assert len(b.controllers) == 1
            asking.cancel()

    run_simulated(story())


@pytest.mark.parametrize("seed", range(25))
def test_doubtful_writes_lead_to_one_outcome_per_operation(seed: int) -> None:
    async def story() -> None:
        async with Brokers("a", "b", seed=seed, trouble=0.25) as brokers:
            brokers.faults.trouble = 0.0
            await brokers.controllers["a"].create(TOPIC, 2, {})
            brokers.faults.trouble = 0.25
            chance = brokers.faults.chance
            epoch = 0
            for number in range(4):
                leader = brokers.lead(chance.choice("ab"))
                record = brokers.record()
                assert record is not None
                target = chance.choice(record.layout.active)
                asking = asyncio.ensure_future(leader.split(TOPIC, target.segment_id, operation_id=f"op{number}"))
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.random() * 0.5)
                    leader = brokers.lead(chance.choice("ab"))
                try:
                    await asking
                except (LedElsewhere, NotLeading):
                    await leader.split(TOPIC, target.segment_id, operation_id=f"op{number}")
                record = brokers.record()
                assert record is not None
                assert record.epoch > epoch
                epoch = record.epoch
            brokers.faults.trouble = 0.0
            await brokers.until(
                lambda: (record := brokers.record()) is not None and record.operation is None and not record.garbage
            )
            record = brokers.record()
            assert record is not None
            assert len(record.layout.active) == 6
            assert set(brokers.shelf.segments) == {backing_topic(TOPIC, one) for one in record.segments.values()}

    run_simulated(story())


def test_concurrent_calls_run_one_after_another() -> None:
    async def story() -> None:
        async with Brokers("a") as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 4, {})
            results = await asyncio.gather(
                a.split(TOPIC, 0),
                a.split(TOPIC, 1),
                a.merge(TOPIC, (2, 3)),
                a.merge(TOPIC, (0, 1)),  # sealed by then, or one epoch earlier
                a.subscribe(TOPIC, "s", STREAM, EARLIEST),
                return_exceptions=True,
            )
            record = brokers.record()
            assert record is not None
            done = sum(not isinstance(one, BaseException) for one in results[:4])
            assert record.epoch == done
            assert done >= 2
            for one in record.segments.values():
                assert "s" in brokers.shelf.segments[backing_topic(TOPIC, one)].cursors

    run_simulated(story())


def test_limits_and_conflicts_have_error_codes() -> None:
    async def story() -> None:
        async with Brokers("a", max_segments=4) as brokers:
            a = brokers.controllers["a"]
            with pytest.raises(TooManySegments):
                await a.create(TOPIC, 5, {})
            await a.create(TOPIC, 3, {})
            with pytest.raises(TopicExists):
                await a.create(TOPIC, 1, {})
            with pytest.raises(TooManySegments):
                await a.split(TOPIC, 0, ways=3)
            with pytest.raises(Error) as refused:
                await a.split(TOPIC, 17)
            assert refused.value.code == "unknown-segment"
            with pytest.raises(Error) as refused:
                await a.merge(TOPIC, (0, 2))
            assert refused.value.code == "bad-merge"
            with pytest.raises(TopicGone):
                await a.split(TOPIC.parse("topic://public/default/none"), 0)

    run_simulated(story())


def test_drained_segments_are_deleted_after_retention() -> None:
    async def story() -> None:
        async with Brokers("a", retention_minutes=60, sweep_seconds=60.0, idle_seconds=60.0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await a.subscribe(TOPIC, "slow", STREAM, EARLIEST)
            await a.subscribe(TOPIC, "fast", SubscriptionKind.QUEUE, EARLIEST)
            parent = backing_topic(TOPIC, Layout.initial(1, now_ms=0)[0])
            at = brokers.shelf.publish(parent, "p", 0, b"x", brokers.clock.now_ms())
            await a.split(TOPIC, 0)
            brokers.shelf.acknowledge(parent, "fast", at)
            await asyncio.sleep(3 * 3600)
            record = brokers.record()
            assert record is not None
            assert 0 in record.segments, "unread data is never dropped, however old"
            brokers.shelf.acknowledge(parent, "slow", Position(0, 0))
            await asyncio.sleep(3 * 3600)  # it is not loaded meanwhile
            record = brokers.record()
            assert record is not None
            assert sorted(record.segments) == [1, 2]
            assert record.epoch == 2
            assert record.last_split_at_ms > 0
            await brokers.until(lambda: parent not in brokers.shelf.segments)
            await brokers.until(lambda: len(a.controllers) == 0)

    run_simulated(story())


def test_namespace_retention_overrides_the_default() -> None:
    async def story() -> None:
        async with Brokers("a", sweep_seconds=60.0) as brokers:
            brokers.rules.said = (10, -1)
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await a.split(TOPIC, 0)
            await asyncio.sleep(9 * MINUTE_MS / 1000)
            assert 0 in (await a.record(TOPIC)).segments
            await asyncio.sleep(15 * MINUTE_MS / 1000)
            assert 0 not in (await a.record(TOPIC)).segments

    run_simulated(story())


def test_drain_not_reported_by_a_crashed_owner_is_asked_for() -> None:
    async def story() -> None:
        async with Brokers("a") as brokers:
            a, shelf, link = brokers.controllers["a"], brokers.shelf, Link()
            await a.create(TOPIC, 1, {})
            await a.register(TOPIC, Registration("s", STREAM, "one", EARLIEST), link)
            parent = backing_topic(TOPIC, (await a.record(TOPIC)).segments[0])
            at = shelf.publish(parent, "p", 0, b"x", 0)
            await a.split(TOPIC, 0)
            listeners, shelf._listeners = shelf._listeners, []
            shelf.acknowledge(parent, "s", at)  # drained, durable; and its owner dies
            shelf._listeners = listeners
            a.placement_changed(has_gained=False)  # another broker crashed: no owner is asked
            await asyncio.sleep(5)
            assert not link.received
            brokers.placing.owner_epochs[parent] = 1
            a.placement_changed(has_gained=False)
            await brokers.until(lambda: bool(link.received) and len(link.received[-1].segments) == 2)

    run_simulated(story())


def test_sessions_survive_a_leader_change_and_expire_after_grace() -> None:
    async def story() -> None:
        async with Brokers("a", "b", session_grace_seconds=10.0, drain_seconds=5.0) as brokers:
            closed: list[str] = []
            brokers.shelf.on_close(lambda ref, subscription, consumer: closed.append(consumer))
            a = brokers.controllers["a"]
            await a.create(TOPIC, 2, {})
            one, two = Link(), Link()
            first, _ = await a.register(TOPIC, Registration("s", STREAM, "one", EARLIEST), one)
            second, _ = await a.register(TOPIC, Registration("s", STREAM, "two", EARLIEST), two)
            assert len(first.segments) == 2
            assert not second.segments
            await brokers.until(lambda: bool(two.received) and len(two.received[-1].segments) == 1)
            assert closed == ["one"]  # it did not release by itself
            await brokers.kill("a")
            b = brokers.lead("b")
            await brokers.until(lambda: len(b.controllers) == 1)  # without a call
            back = Link()
            again, _ = await b.register(TOPIC, Registration("s", STREAM, "two", EARLIEST), back)
            assert again.segments == two.received[-1].segments
            await brokers.until(lambda: bool(back.received) and len(back.received[-1].segments) == 2)
            assert "one" in closed

    run_simulated(story())


def test_operation_enters_the_write_gate_once() -> None:
    async def story() -> None:
        async with Brokers("a") as brokers:
            a, gate = brokers.controllers["a"], brokers.gate
            await a.create(TOPIC, 1, {})
            reached = asyncio.Event()

            def before(what: str) -> None:
                if what.startswith("Seal"):
                    reached.set()

            brokers.faults.before = before
            asking = asyncio.ensure_future(a.split(TOPIC, 0))
            await reached.wait()
            closing = asyncio.ensure_future(gate.close())  # in the middle of it
            await asyncio.sleep(0)
            assert not gate.is_open
            assert await asking == 1  # what was begun is finished
            await closing
            late = asyncio.ensure_future(a.split(TOPIC, 1))
            await asyncio.sleep(1)
            record = brokers.record()
            assert record is not None
            assert record.operation is None  # not begun
            gate.open()
            assert await late == 2
            assert gate.writes == 0

    run_simulated(story())


def test_failed_segment_deletion_is_retried() -> None:
    async def story() -> None:
        async with Brokers("a", retention_minutes=0, sweep_seconds=5.0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await a.split(TOPIC, 0)
            parent = backing_topic(TOPIC, (await a.record(TOPIC)).segments[0])
            failures = 3

            def before(what: str) -> None:
                nonlocal failures
                if what == "Delete 0" and failures:
                    failures -= 1
                    raise HostUnavailable("the disk is away")

            brokers.faults.before = before
            await brokers.until(lambda: (record := brokers.record()) is not None and bool(record.garbage))
            assert parent in brokers.shelf.segments  # out of the layout, and not forgotten
            await brokers.until(lambda: parent not in brokers.shelf.segments)
            assert failures == 0
            await brokers.until(lambda: (record := brokers.record()) is not None and not record.garbage)

    run_simulated(story())


def test_registration_of_a_closed_connection_is_disconnected() -> None:
    async def story() -> None:
        async with Brokers("a", session_grace_seconds=10.0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            await a.subscribe(TOPIC, "s", STREAM, EARLIEST)
            storing = asyncio.Event()

            def before(what: str) -> None:
                if "/groups/" in what:
                    storing.set()

            brokers.faults.before = before
            joining = asyncio.ensure_future(a.register(TOPIC, Registration("s", STREAM, "one", EARLIEST), Link()))
            await storing.wait()
            joining.cancel()  # as when the connection is closed
            await asyncio.gather(joining, return_exceptions=True)
            leader = a.controllers.leading(TOPIC)
            assert leader is not None
            members = leader.members["s"]
            await brokers.until(lambda: members.has_sessions)
            assert members.group.sessions.connection("one") is None
            await brokers.until(lambda: not members.has_sessions)  # its grace is over

    run_simulated(story())


def test_unfinished_work_continues_on_the_same_broker() -> None:
    async def story() -> None:
        async with Brokers("a", sweep_seconds=3_600.0, idle_seconds=3_600.0) as brokers:
            a = brokers.controllers["a"]
            await a.create(TOPIC, 1, {})
            refusals = 1

            def before(what: str) -> None:
                nonlocal refusals
                if what == "Seal 0" and refusals:
                    refusals -= 1
                    raise StaleTerm("a later leader has sent a request")

            brokers.faults.before = before
            leader = await a.controllers.lead(TOPIC)
            with pytest.raises(NotLeading):
                await leader.ask(SplitCall("op", 0))  # its caller gives up
            await brokers.until(lambda: (record := brokers.record()) is not None and record.epoch == 1, 30.0)

    run_simulated(story())


class ForeignLink(Link):
    reports_releases = False


def test_pulsar_client_is_granted_before_its_assignment_is_sent() -> None:
    async def story() -> None:
        async with Brokers("a", session_grace_seconds=10.0, drain_seconds=5.0) as brokers:
            a, asked, received = brokers.controllers["a"], list[str](), list[int]()
            brokers.faults.before = asked.append
            await a.create(TOPIC, 2, {})
            one, two = ForeignLink(), ForeignLink()
            first, _ = await a.register(TOPIC, Registration("s", STREAM, "one", EARLIEST), one)
            assert len(first.segments) == 2
            assert {"GrantReader 0", "GrantReader 1"} <= set(asked)
            names = [backing_topic(TOPIC, segment) for segment in first.segments]
            fences = [brokers.shelf.segments[name].cursors["s"].fence for name in names]
            assert {fence.holder for fence in fences} == {"one"}
            await a.register(TOPIC, Registration("s", STREAM, "two", EARLIEST), two)
            await brokers.until(lambda: bool(two.received) and len(two.received[-1].segments) == 1)
            assert sorted(fence.holder for fence in fences) == ["one", "two"]
            received += [segment.segment_id for segment in two.received[-1].segments]
            assert "CloseReader" not in " ".join(asked)  # it is expected to release by itself
            await asyncio.sleep(6)
            assert f"CloseReader {received[0]}" in asked  # and is closed if it has not

    run_simulated(story())
