"""Options of source and sink: defaults, hints, what excludes each other."""

from __future__ import annotations

import pytest

from anabranch.spark.access import BadSparkOption
from anabranch.spark.options import SINK_OPTIONS, SOURCE_OPTIONS, Given, Metadata, SourceOptions, moment_ms

BASE = {"serviceUrl": "pulsar://h:6650", "topic": "t"}


def parsed(options: dict[str, str] | None = None, *, streaming: bool = False) -> SourceOptions:
    return SourceOptions.of({**BASE, **(options or {})}, streaming=streaming)


def test_defaults_differ_between_batch_and_stream() -> None:
    batch, stream = parsed(), parsed(streaming=True)
    assert (batch.start.word, stream.start.word) == ("earliest", "latest")
    assert (batch.packing.keeps_key_order, stream.packing.keeps_key_order) == (False, True)
    assert batch.topics == ("persistent://public/default/t",)
    assert batch.metadata is Metadata.ALL


def test_names_are_known_in_any_case() -> None:
    assert parsed({"MAXROWSPERTRIGGER": "7"}).rows_max == 7


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("startingOffset", "did you mean startingOffsets?"),
        ("failOnDatalos", "did you mean failOnDataLoss?"),
        ("client.tokn", "did you mean client.token?"),
        ("zzz", "there is no option zzz"),
    ],
)
def test_unknown_names_are_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(BadSparkOption) as told:
        parsed({name: "1"})
    assert hint in told.value.reason


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": "a,b"}, "give one of topic, topics, topicsPattern"),
        ({"maxRowsPerTrigger": "many"}, "option maxRowsPerTrigger is a whole number, not 'many'"),
        ({"minPartitions": "0"}, "option minPartitions is at least 1, not 0"),
        ({"failOnDataLoss": "perhaps"}, "option failOnDataLoss is true or false"),
        ({"valueFormat": "xml"}, "option valueFormat is one of binary, string, schema"),
        ({"startingOffsets": "yesterday"}, "is earliest, latest or offset JSON"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "exclude each other"),
        ({"startingTimestamp": "noon"}, "milliseconds since 1970 or an ISO time"),
        ({"maxTriggerDelay": "soon"}, "a duration like 30s or 15m"),
        ({"subscription": "s"}, "option subscription is for streams"),
        ({"serviceUrl": ""}, "option serviceUrl is missing"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadSparkOption) as told:
        parsed(options)
    assert text in told.value.reason


def test_a_stream_has_no_end() -> None:
    with pytest.raises(BadSparkOption, match="endingOffsets is for batch queries"):
        parsed({"endingOffsets": "latest"}, streaming=True)


def test_times_and_durations() -> None:
    assert moment_ms("1700000000000") == 1_700_000_000_000
    assert moment_ms("2023-11-14T22:13:20") == moment_ms("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    assert parsed({"maxTriggerDelay": "30s"}, streaming=True).trigger_delay_ms == 30_000


def test_secrets_are_not_shown() -> None:
    assert "s3cr3t" not in repr(parsed({"client.token": "s3cr3t"}))


def test_names_are_told_apart() -> None:
    for names in (SOURCE_OPTIONS, SINK_OPTIONS):
        assert len({name.lower() for name in names}) == len(names)
    assert Given({"checkpointLocation": "x"}, SINK_OPTIONS).text("topic") is None
