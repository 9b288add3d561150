"""What the sink refuses by name, who a task is for the broker, and how rows are numbered by bucket and topic."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.sink.topic_writer import OnReplay
from anabranch.spark.sink.writers import BadRows, SinkOptions, StreamWriter, identity, rows_of

BASE = {"serviceUrl": "pulsar://h:6650", "topic": "t"}
BUCKETS = {"producers": "buckets", "buckets": "4", "sortBy": "key"}


def parsed(**options: str) -> SinkOptions:
    return SinkOptions.of({**BASE, **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delivery": "exactly-once"}, "delivery=exactly-once is refused: it needs transactions"),
        ({"delivery": "twice"}, "option delivery is one of effectively-once, at-least-once"),
        ({"txnTimeoutMs": "1000"}, "option txnTimeoutMs is refused: it needs transactions"),
        ({"truncate": "true"}, "option truncate is refused"),
        ({"buckets": "4"}, "buckets goes with producers=buckets"),
        ({"producers": "buckets", "sortBy": "key"}, "producers=buckets needs buckets, 1 to 65536, not 0"),
        ({"producers": "buckets", "buckets": "4"}, "producers=buckets needs sortBy"),
        ({**BUCKETS, "delivery": "at-least-once"}, "producers=buckets is for delivery=effectively-once"),
        ({"idempotencyVersion": "1"}, "idempotencyVersion goes with idempotencyKey"),
        ({"idempotencyKey": "k", "idempotencyVersion": "-1"}, "is 0 to 2147483647"),
        ({"onNonDeterministicReplay": "shrug"}, "option onNonDeterministicReplay is one of fail, warn, ignore"),
        ({"topic": "non-persistent://public/default/t"}, "rows go to persistent:// and topic:// topics"),
    ],
)
def test_refused_by_name(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadSparkOption) as caught:
        parsed(**options)
    assert text in caught.value.reason


def test_a_stream_is_recognised_by_its_checkpoint() -> None:
    with pytest.raises(BadSparkOption, match="idempotencyKey is for batch writes"):
        StreamWriter(parsed(idempotencyKey="k"))
    assert parsed(onNonDeterministicReplay="WARN").outlet.on_replay is OnReplay.WARN


def test_who_a_task_is() -> None:
    """Outside of a task: partition 0, no query."""
    assert identity(parsed(), "job", 5).name == "spark/job/0"
    assert identity(parsed(), "job", 5).first == 0
    keyed = identity(parsed(idempotencyKey="k", idempotencyVersion="3"), "job", 5)
    assert (keyed.name, keyed.first, keyed.epoch) == ("spark/k/0", 3 << 32, 5)
    assert keyed.of_bucket(2).name == "spark/k/bucket-2"
    assert identity(parsed(delivery="at-least-once"), "job", 5).name.startswith("spark-")


def table(buckets: list[int | None], topics: list[str]) -> pa.RecordBatch:
    values = [f"v{i}" for i in range(len(buckets))]
    keys = [f"k{len(buckets) - i}" for i in range(len(buckets))]
    return pa.RecordBatch.from_pydict(
        {"key": keys, "value": values, "bucket": pa.array(buckets, pa.int32()), "topic": topics}
    )


def test_rows_are_numbered_by_bucket_and_topic() -> None:
    options = SinkOptions.of({"serviceUrl": BASE["serviceUrl"], **BUCKETS, "sortBy": "value"})
    batches = [table([0, 1, 0, 1], ["a", "a", "b", "a"]), table([0, 0], ["a", "b"])]
    found: dict[tuple[int | None, str], list[tuple[int, str]]] = {}
    for (bucket, topic), rows in rows_of(options, batches, 100):
        numbered = [(rows.first + i, value) for i, value in enumerate(rows.values.to_pylist())]
        found.setdefault((bucket, topic.rpartition("/")[2]), []).extend(numbered)
    assert found == {
        (0, "a"): [(100, "v0"), (101, "v0")],
        (0, "b"): [(100, "v1"), (101, "v2")],
        (1, "a"): [(100, "v1"), (101, "v3")],
    }


def test_a_sorted_task_without_batches_has_no_rows() -> None:
    """Spark starts a task for an empty partition, and gives it no batch at all."""
    options = SinkOptions.of({"serviceUrl": BASE["serviceUrl"], **BUCKETS, "sortBy": "value"})
    assert list(rows_of(options, iter([]), 0)) == []


def test_buckets_that_do_not_exist() -> None:
    options = parsed(**BUCKETS)
    for wrong, text in (([4], "column bucket has 4, where there are 4"), ([None], "column bucket is null")):
        with pytest.raises(BadRows, match=text):
            list(rows_of(options, [table([*wrong], ["t"])], 0))
