"""Options of source and sink: defaults, hints, what excludes each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.options import SINK_OPTIONS, SOURCE_OPTIONS, Given, Metadata, SourceOptions, moment_ms

ROOT = Path(__file__).parents[3]
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
    with pytest.raises(BadSparkOption) as caught:
        parsed({name: "1"})
    assert hint in caught.value.reason


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
        ({"readAlignment": "eventTime"}, "option readAlignment is one of backlog, publishTime"),
        ({"isolation": "none"}, "option isolation is one of read_committed, read_uncommitted"),
        ({"keys": "[1]"}, "option keys is keys with commas between them, or a JSON list of texts"),
        ({"keyHashRange": "7fff-0000"}, "hexadecimal like 0000-7fff"),
        ({"keyHashRange": "0-32768"}, "hexadecimal like 0000-7fff"),
        ({"txnTimeoutMs": "1"}, "option txnTimeoutMs is refused: it needs transactions"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadSparkOption) as caught:
        parsed(options)
    assert text in caught.value.reason


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxBytesPerPartition": "1"}, "option maxBytesPerPartition is for batch queries"),
        ({"maxRecordsPerPartition": "1"}, "option maxRecordsPerPartition is for batch queries"),
        ({"metadata": "segments"}, "metadata=segments is for batch queries"),
    ],
)
def test_what_a_stream_cannot_have(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadSparkOption) as caught:
        parsed(options, streaming=True)
    assert text in caught.value.reason
    assert parsed(options)


def test_a_stream_may_have_an_end() -> None:
    bounded = parsed({"endingOffsets": "latest"}, streaming=True)
    assert bounded.end is not None
    assert bounded.end.word == "latest"
    assert parsed(streaming=True).end is None


def test_times_and_durations() -> None:
    assert moment_ms("1700000000000") == 1_700_000_000_000
    assert moment_ms("2023-11-14T22:13:20") == moment_ms("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    assert parsed({"maxTriggerDelay": "30s"}, streaming=True).trigger_delay_ms == 30_000


def test_secrets_are_not_shown() -> None:
    assert "s3cr3t" not in repr(parsed({"client.token": "s3cr3t"}))
    assert "s3cr3t" not in repr(parsed({"client.user": "ada", "client.password": "s3cr3t"}))


def test_one_way_to_say_who_we_are(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    for options, method, shown in (
        ({"client.token": "t"}, "token", b"t"),
        ({"client.tokenFile": str(tmp_path / "token")}, "token", b"from a file"),
        ({"client.user": "ada", "client.password": "x"}, "basic", b"ada:x"),
        ({"client.tlsCertificateFilePath": "c.pem"}, "tls", b""),
    ):
        found = parsed(options).access.credentials()
        assert found is not None
        assert (found.method, found.data()) == (method, shown)
    assert parsed().access.credentials() is None
    with pytest.raises(BadSparkOption, match=r"client\.token and client\.user exclude each other"):
        parsed({"client.token": "t", "client.user": "ada", "client.password": "x"})
    with pytest.raises(BadSparkOption, match=r"client\.user and client\.password go together"):
        parsed({"client.user": "ada"})


@pytest.mark.parametrize(("chapter", "known"), [("Reading", SOURCE_OPTIONS), ("Writing", SINK_OPTIONS)])
def test_the_guide_has_every_option_and_no_other(chapter: str, known: tuple[str, ...]) -> None:
    text = (ROOT / "docs/guides/spark.md").read_text().split(f"## {chapter}\n")[1].split("\n## ")[0]
    table = text.split("| option | default | meaning |\n")[1].split("\n\n")[0]
    reported = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(reported) == sorted(known)


def test_names_are_told_apart() -> None:
    for names in (SOURCE_OPTIONS, SINK_OPTIONS):
        assert len({name.lower() for name in names}) == len(names)
    assert Given({"checkpointLocation": "x"}, SINK_OPTIONS).text("topic") is None
