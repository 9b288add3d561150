"""What blocks the migration of a regular topic: everything at once, each with a reason that says what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anabranch.broker.admin.migration_check import PARTITIONS_MAX, TopicFacts, blockers, check_kinds, report
from anabranch.controller.segment_host import Adopted, OldClient
from anabranch.model.errors import BadRequest

OLD, NEW = "persistent://public/default/orders", "topic://public/default/orders"
PRODUCER = OldClient("producer", "p", "10.0.0.7:1", "Pulsar-Java-v3")
CONSUMER = OldClient("consumer", "c", "10.0.0.8:2", "Pulsar-Go-0.19", "audit")
FREE = TopicFacts(OLD, 2, [Adopted((), (("audit", False), ("work", True))), Adopted((), (("work", False),))])


def kinds_of(facts: TopicFacts, *, force: bool = False, **kinds: str) -> list[str]:
    return [one.kind.value for one in blockers(facts, force=force, kinds=kinds)]


def test_nothing_blocks_a_topic_without_old_clients() -> None:
    found = report(FREE, NEW, force=False, kinds={})
    assert found["possible"] and found["blockers"] == []
    assert (found["segments"], found["subscriptions"]) == (2, {"audit": "STREAM", "work": "QUEUE"})


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"is_partition": True}, "partition-of-a-topic", "migrate its topic"),
        ({"is_scalable": True}, "scalable-topic-exists", "has the name"),
        ({"is_migrating": True}, "migration-runs", "is running"),
        ({"partitions": PARTITIONS_MAX + 1}, "partition-count", f"1025 partitions; at most {PARTITIONS_MAX}"),
        ({"is_being_deleted": True}, "deletion-runs", "repeat it"),
        ({"terminated": [f"{OLD}-partition-1"]}, "terminated", "partition-1"),
        ({"replication_clusters": ["west"]}, "geo-replication", "west"),
        ({"compaction_threshold": 1}, "compaction", "compaction threshold"),
    ],
)
def test_each_condition_blocks_it_with_a_reason(changes: dict[str, Any], kind: str, words: str) -> None:
    (found,) = blockers(replace(FREE, **changes), force=False, kinds={})
    assert found.kind.value == kind
    assert words in found.text


def test_largest_number_of_partitions_is_possible() -> None:
    assert kinds_of(replace(FREE, partitions=PARTITIONS_MAX)) == []


def test_all_blockers_are_named_at_once() -> None:
    facts = replace(FREE, compaction_threshold=1, replication_clusters=["west"], found=[Adopted((PRODUCER,))])
    assert kinds_of(facts, gone="QUEUE") == ["geo-replication", "compaction", "unknown-subscription", "v4-clients"]


def test_each_old_client_is_named_once_and_force_closes_them_instead() -> None:
    facts = replace(FREE, found=[Adopted((PRODUCER, CONSUMER)), Adopted((PRODUCER,))])
    (found,) = blockers(facts, force=False, kinds={})
    assert found.text.startswith("2 clients cannot follow a migration: ")
    assert "producer p at 10.0.0.7:1 (Pulsar-Java-v3)" in found.text
    assert "consumer c of audit at 10.0.0.8:2 (Pulsar-Go-0.19)" in found.text
    assert kinds_of(facts, force=True) == []
    shown = report(facts, NEW, force=False, kinds={})["clients"]
    assert [(one["role"], one["subscription"]) for one in shown] == [("consumer", "audit"), ("producer", None)]


def test_chosen_types_are_stream_or_queue_in_any_case() -> None:
    assert check_kinds({"audit": "Queue"}) == {"audit": "QUEUE"}
    with pytest.raises(BadRequest, match="stream or queue, not checkpoint"):
        check_kinds({"audit": "checkpoint"})
