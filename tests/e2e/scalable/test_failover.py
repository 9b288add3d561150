"""The leader of a scalable topic is killed, or frozen, in the middle of a split or merge: another broker finishes it.

Two brokers as processes, on SQLite and ZooKeeper (and once on etcd and Oxia). Whatever step the leader dies at, the
operation has one outcome, no segment is sealed but active, none is left over, and every subscription has its cursor on
every segment. A leader that stood still past its session and goes on in the middle of its operation changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.cluster import RestRefused, rest
from tests.support.processes.scalable_cluster import (
    NAMESPACE,
    Brokers,
    ask_aside,
    check_whole,
    kill_at,
    new_topic,
    scalable_brokers,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("scalable-failover")]

SPLIT_STEPS = [
    "before-plan",
    "after-plan",
    "before-create",
    "after-create",
    "after-create:2",
    "before-seal",
    "after-seal",
    "before-commit",
    "after-commit",
    "tell-layout",
]
MERGE_STEPS = ["after-create", "after-seal", "after-seal:2", "before-commit"]
FROZEN_STEPS = ["before-create", "before-seal", "before-commit"]


@pytest.fixture(scope="module", params=["sqlite", "zk"])
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with scalable_brokers(tmp_path_factory.mktemp("failover"), request.param) as found:
        yield found


@pytest.fixture
def brokers(started: Brokers) -> Brokers:
    """Both serve, whatever the test before did to them."""
    started.die_at.unlink(missing_ok=True)
    started.processes.revive()
    return started


@pytest.mark.parametrize("step", SPLIT_STEPS)
def test_a_split_whose_leader_is_killed(brokers: Brokers, step: str) -> None:
    topic = new_topic(brokers, 1)
    kill_at(brokers, step, "POST", f"{topic}/split/0?operationId=op")
    if step != "before-plan":  # it continues without a request
        brokers.until(lambda: brokers.ask("GET", topic)["epoch"] == 1, "the split was not finished")
    brokers.insist("POST", f"{topic}/split/0?operationId=op")
    check_whole(brokers, topic, [1, 2], "op")


@pytest.mark.parametrize("step", MERGE_STEPS)
def test_a_merge_whose_leader_is_killed(brokers: Brokers, step: str) -> None:
    topic = new_topic(brokers, 3)
    kill_at(brokers, step, "POST", f"{topic}/merge/0/1?operationId=op")
    brokers.until(lambda: brokers.ask("GET", topic)["epoch"] == 1, "the merge was not finished")
    brokers.insist("POST", f"{topic}/merge/0/1?operationId=op")
    check_whole(brokers, topic, [2, 3], "op")


def test_leader_frozen_past_its_session_changes_nothing(brokers: Brokers) -> None:
    topic = new_topic(brokers, 1)
    leader = brokers.leader_of(topic)
    leader.freeze()
    take_over(brokers, f"{topic}/split/0?operationId=op")
    leader.thaw()
    with pytest.raises((OSError, RestRefused)):  # asked directly, under another id: not on its own old layout
        rest(leader, "POST", f"/admin/v2/scalable/{NAMESPACE}/{topic}/split/0?operationId=late")
    check_whole(brokers, topic, [1, 2], "op")


@pytest.mark.parametrize("step", FROZEN_STEPS)
def test_resumed_leader_does_not_repeat_finished_work(brokers: Brokers, step: str) -> None:
    """It stands still right before a request or a write; when it makes it, the topic is two layouts further."""
    topic = new_topic(brokers, 1)
    leader = brokers.leader_of(topic)
    brokers.die_at.write_text(f"stop {step}")
    asking = ask_aside(brokers, "POST", f"{topic}/split/0?operationId=op")
    leader.wait_frozen()
    take_over(brokers, f"{topic}/split/0?operationId=op")  # the same one: what was begun is finished
    take_over(brokers, f"{topic}/split/2?operationId=next")
    leader.thaw()
    asking.join(30.0)
    brokers.processes.revive()  # it is back, under a new session: what it was about to do is done or refused
    check_whole(brokers, topic, [1, 3, 4], "next", epoch=2)


def take_over(brokers: Brokers, path: str) -> None:
    """By the running broker, as soon as the session of the stopped one has ended."""

    def done() -> bool:
        try:
            rest(brokers.any(), "POST", f"/admin/v2/scalable/{NAMESPACE}/{path}", within_s=1.0)
        except (OSError, RestRefused):
            return False
        return True

    brokers.processes.until(done, "no broker took the topic over", 60.0)


def test_interrupted_deletion_is_completed(brokers: Brokers) -> None:
    topic = new_topic(brokers, 2)
    # the first is the intent in the record, the second a segment's
    kill_at(brokers, "before-delete:2", "DELETE", f"{topic}?force=true")

    def is_gone() -> bool:
        return topic not in " ".join(rest(brokers.any(), "GET", f"/admin/v2/scalable/{NAMESPACE}"))

    brokers.until(is_gone, "the deletion was not finished")
    brokers.insist("PUT", f"{topic}?numInitialSegments=1")  # at once, another life of the name
    assert brokers.insist("GET", topic)["epoch"] == 0


@pytest.mark.parametrize("store", ["etcd", "oxia"])
def test_a_split_and_a_failover_on(store: str, tmp_path: Path) -> None:
    with scalable_brokers(tmp_path, store) as brokers:
        topic = new_topic(brokers, 1)
        brokers.insist("POST", f"{topic}/split/0?operationId=first")
        kill_at(brokers, "before-commit", "POST", f"{topic}/split/1?operationId=op")
        brokers.until(lambda: brokers.ask("GET", topic)["epoch"] == 2, "the split was not finished")
        brokers.insist("POST", f"{topic}/split/1?operationId=op")
        check_whole(brokers, topic, [2, 3, 4], "op", epoch=2)
