"""Requests to segment owners: repeated until confirmed, a few at a time, and not after the group is over."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.controller import segment_host as host
from anabranch.controller.group.owner_requests import ASK_TOGETHER, SegmentOwners, together
from anabranch.controller.segment_host import HostError, StaleTerm, Status
from anabranch.model.errors import Error
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.runtime.clock import Clock
from tests.support.in_memory.controllers import TOPIC
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated

LAYOUT = Layout.initial(4, now_ms=0)


class Asked:
    """A leader whose owners answer as the test says: errors first, then what was asked for."""

    def __init__(self, *errors: Error) -> None:
        self.topic: TopicName = TOPIC
        self.clock: Clock = LoopClock()
        self.owner_epoch: Callable[[TopicName], int] = lambda name: len(str(name))
        self.errors = list(errors)
        self.requests: list[host.Request] = []
        self.stopped: list[str] = []
        self.is_over = False

    async def ask_host(self, request: host.Request) -> host.Answer:
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        if isinstance(request, host.Fence):
            return Status(True, None, frozenset(), frozenset({("s", request.segment.segment_id), ("other", 9)}))
        return host.Done()

    def stop_leading(self, reason: str) -> None:
        self.stopped.append(reason)

    def owners(self) -> SegmentOwners:
        segments = {one.segment_id: one for one in LAYOUT.active}
        return SegmentOwners(self, "s", 7, lambda: segments, lambda: self.is_over)


def test_request_is_repeated_until_confirmed() -> None:
    leader = Asked(HostError("not now"), HostError("nor now"))
    run_simulated(leader.owners().hold(2, Position(1, 1)))
    assert [type(one) for one in leader.requests] == [host.Hold] * 3
    assert {one.segment.segment_id for one in leader.requests} == {2}
    assert {one.segment.incarnation for one in leader.requests} == {7}


def test_leader_stops_when_an_owner_knows_a_later_term() -> None:
    leader = Asked(StaleTerm("term 9"))
    found: list[tuple[int, int]] = []
    run_simulated(leader.owners().ask_drained([1], lambda segment, rewind_count: found.append((segment, rewind_count))))
    assert len(leader.requests) == 1 and len(leader.stopped) == 1 and found == []


def test_drains_of_other_subscriptions_are_ignored() -> None:
    leader = Asked()
    found: list[tuple[int, int]] = []
    run_simulated(
        leader.owners().ask_drained([0, 3, 99], lambda segment, rewind_count: found.append((segment, rewind_count)))
    )
    assert found == [(0, 0), (3, 3)]  # segment 99 does not exist, so no owner is asked


def test_no_request_is_sent_when_the_group_is_over() -> None:
    leader = Asked()
    leader.is_over = True
    run_simulated(leader.owners().close("c", [0, 1], 5))
    leader.is_over = False
    run_simulated(leader.owners().retry_until_confirmed(1, lambda ref: None))
    assert leader.requests == []


def test_consumer_is_closed_at_every_owner() -> None:
    leader = Asked()
    run_simulated(leader.owners().close("c", [0, 1, 2], 5))
    closes = [one for one in leader.requests if isinstance(one, host.CloseReader)]
    assert sorted(one.segment.segment_id for one in closes) == [0, 1, 2]


def test_owner_epochs_cover_existing_segments_only() -> None:
    assert set(Asked().owners().owner_epochs([0, 3, 99])) == {0, 3}


def test_requests_are_sent_a_few_at_a_time() -> None:
    clock, now, most = LoopClock(), 0, 0

    async def ask(_: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await clock.sleep(1)
        now -= 1

    run_simulated(together(ask, range(3 * ASK_TOGETHER + 1)))
    assert (now, most) == (0, ASK_TOGETHER)
