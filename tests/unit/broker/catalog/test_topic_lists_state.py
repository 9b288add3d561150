"""Names, digests and differences of topic lists."""

from __future__ import annotations

from anabranch.broker.catalog.topic_lists_state import NamespaceTopics, TopicList, is_system_topic, parts_of
from anabranch.model.names import TopicName

A, B = TopicName.parse("persistent://t/n/a"), TopicName.parse("persistent://t/n/b")


def test_names_are_records_and_partitions() -> None:
    topics = NamespaceTopics()
    topics.replace([A, B.partition(0)], {B: 2})
    assert topics.texts() == {str(A): "t/n/a", str(B.partition(0)): "t/n/b", str(B.partition(1)): "t/n/b"}
    topics.note_partitions(B, 0)
    topics.note_record(A, exists=False)
    assert set(topics.texts()) == {str(B.partition(0))}
    topics.note_partitions(B, 3)
    topics.note_record(B.partition(0), exists=False)
    assert len(topics.texts()) == 3 and not topics.has_record(B.partition(0))


def test_system_topics_are_not_listed() -> None:
    for local in ("__change_events", "__change_events-partition-3", "x__transaction_pending_ack"):
        assert is_system_topic(TopicName.parse(f"persistent://t/n/{local}"))
    assert not is_system_topic(TopicName.parse("persistent://t/n/__mine"))
    topics = NamespaceTopics()
    topics.replace([A, TopicName.parse("persistent://t/n/__change_events")], {})
    assert set(topics.texts()) == {str(A)}


def test_differences() -> None:
    earlier, later = TopicList.of(["c", "a", "b"]), TopicList.of(["b", "e", "d"])
    assert (later.added_since(earlier), later.deleted_since(earlier)) == (["d", "e"], ["a", "c"])
    assert TopicList.of([]).digest == "00000000" and TopicList.of(["a", "b"]) == TopicList.of(["b", "a"])


def test_parts_keep_all_names_in_order() -> None:
    names = [f"topic-{number}" for number in range(20)]
    parts = list(parts_of(names, 50))
    assert [name for part in parts for name in part] == names
    assert all(sum(len(name) + 4 for name in part) <= 50 for part in parts)
    assert list(parts_of(["x" * 100], 10)) == [["x" * 100]] and list(parts_of([], 10)) == [[]]
