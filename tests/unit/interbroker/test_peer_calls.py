"""Peer calls: declared by decorator, found by their name on the wire."""

from __future__ import annotations

from typing import cast

import pytest

from anabranch.broker.admin.service import BrokerAdmin
from anabranch.broker.segment_host.host import ClusterSegmentHost
from anabranch.broker.services import Services
from anabranch.broker.wire.server import BrokerServer
from anabranch.interbroker.peer_calls import PeerCalls, peer_call, peer_call_of
from anabranch.model.errors import NotFound

ON_THE_WIRE = {
    "admin": "create_part delete_part check_deletable part_stats non_persistent is_loaded",
    "brokers": "owned_here drain_me resume_me",
    "care": "unload trim truncate compact terminated inner_stats internal_info",
    "cursors": "names check make durable delete properties set_properties skip_all reset_to_time expire",
    "policies": "unload_mine clear_topic is_subscription_used unsubscribe_topic",
    "scalable": "create_here delete_here wake_here split_here merge_here subscribe_here unsubscribe_here move_here "
    "state_here",
    "segments": "ask news measure sequence",
}


class Counter:
    def __init__(self) -> None:
        self.total = 0

    @peer_call("counter.add", idempotent=False)
    async def increase(self, topic: str, by: int) -> str:
        self.total += by
        return topic

    async def hidden(self) -> None:
        raise AssertionError("not a peer call")


async def test_declared_method_is_served_by_its_wire_name() -> None:
    counter = Counter()
    calls = PeerCalls(counter)
    assert await calls.serve("counter.add", {"topic": "a", "by": 2}) == "a"
    assert counter.total == 2
    assert not peer_call_of(counter.increase).is_idempotent


async def test_call_with_topics_is_made_for_each_in_order() -> None:
    assert await PeerCalls(Counter()).serve("counter.add", {"topics": ["b", "a"], "by": 1}) == ["b", "a"]


@pytest.mark.parametrize("name", ["counter.hidden", "counter.increase", "counter", "", "counter.__init__"])
async def test_undeclared_name_is_not_found(name: str) -> None:
    with pytest.raises(NotFound):
        await PeerCalls(Counter()).serve(name, {})


def test_names_on_the_wire_do_not_change() -> None:
    """Brokers of two versions may be in one cluster."""

    def no_services() -> Services:
        raise AssertionError

    calls = BrokerAdmin(no_services, cast(BrokerServer, None), lambda: None).peer_calls
    calls.add(ClusterSegmentHost.__new__(ClusterSegmentHost))
    missing = [
        f"{group}.{name}"
        for group, names in ON_THE_WIRE.items()
        for name in names.split()
        if f"{group}.{name}" not in calls
    ]
    assert missing == []
