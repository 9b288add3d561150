"""Options of source and sink: names, values, defaults, conflicts. Pure.

Spark passes option names without regard to case, so they are compared that way. An unknown name is an error that
suggests the nearest known one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

from anabranch.client.encryption.options import Decryption
from anabranch.model.names import TopicName
from anabranch.spark.client.access import CLIENT_OPTIONS, Access, BadSparkOption
from anabranch.spark.encryption_options import decryption_of
from anabranch.spark.offsets.key_filter import KeyFilter, read_keys, read_spans
from anabranch.spark.offsets.partitions import Packing

T = TypeVar("T")

SOURCE_OPTIONS = (
    "serviceUrl", "adminUrl", "topic", "topics", "topicsPattern", "startingOffsets", "startingTimestamp",
    "startingTimestampStrategy", "endingOffsets", "endingTimestamp", "maxRowsPerTrigger", "maxBytesPerTrigger",
    "minRowsPerTrigger", "maxTriggerDelay", "minPartitions", "maxPartitions", "maxRecordsPerPartition",
    "maxBytesPerPartition", "preserveKeyOrder", "readAlignment", "failOnDataLoss", "subscription", "subscriptionPrefix",
    "keys", "keyHashRange", "isolation", "metadata", "includeProperties", "includeMetadata", "includeKeyBytes",
    "valueFormat", "metadataMaxAgeMs", "fetchRetries", "fetchRetryBackoffMs", "operationTimeoutMs", "prefetchBytes",
    "arrowBatchRows", "arrowBatchBytes", "decryptionKeys", "decryptionKeyFunction", "cryptoFailure",
)  # fmt: skip
SINK_OPTIONS = (
    "serviceUrl", "adminUrl", "topic", "delivery", "producerPrefix", "producers", "buckets", "sortBy", "idempotencyKey",
    "idempotencyVersion", "entryMaxRows", "entryMaxBytes", "maxInFlight", "compression", "onNonDeterministicReplay",
    "operationTimeoutMs", "sendTimeoutMs", "partitionHash", "encryptionKeys", "encryptionKeyFunction",
    "encryptionRecipients",
)  # fmt: skip
NOT_YET = {
    "txnTimeoutMs": "transactions, which brokers do not have yet; delivery=effectively-once stores each row once, too",
    "truncate": "a topic that can be emptied: what is in one cannot be taken back",
}
"""Options that will mean something, and what for: refused by name, not as unknown."""
ASYNC_PROGRESS = "asyncProgressTrackingEnabled"
SPARKS_OWN = frozenset(
    {"path", "checkpointlocation", "queryname", "outputmode", "asyncprogresstrackingcheckpointintervalms"}
    | {"_asyncprogresstrackingoverridesinksupportcheck", ASYNC_PROGRESS.lower()}
)
"""What Spark itself puts among the options of a data source."""


class Metadata(StrEnum):
    """Which columns come without being asked for by a schema."""

    NONE = "none"  # key, value
    BASIC = "basic"  # … and times
    ALL = "all"


class Subject(StrEnum):
    """What the rows are."""

    MESSAGES = "messages"
    SEGMENTS = "segments"  # one row per segment: the graph, positions, sizes


class Alignment(StrEnum):
    """How a limit per batch is shared out among the segments."""

    BACKLOG = "backlog"  # in proportion to what each still has
    PUBLISH_TIME = "publishtime"  # all up to the same moment, so that catching up makes no late data


class Isolation(StrEnum):
    """Without transactions nothing is ever uncommitted: both read the same."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class ValueFormat(StrEnum):
    BINARY = "binary"
    STRING = "string"
    SCHEMA = "schema"  # columns of the topic's schema (JSON or Avro) in place of `value`


class Given:
    """Options as they came, checked against the names that are known."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        names = list(known)
        self._names = {name.lower(): name for name in names}
        self._values: dict[str, str] = {}
        self._sparks: dict[str, str] = {}
        self.client: dict[str, str] = {}
        client_names = {name.lower() for name in CLIENT_OPTIONS}
        for name, value in options.items():
            low = name.lower()
            if low.startswith("client."):
                if low.removeprefix("client.") not in client_names:
                    raise _unknown(name, [f"client.{one}" for one in CLIENT_OPTIONS])
                self.client[low.removeprefix("client.")] = value
            elif low in self._names:
                self._values[low] = value
            elif low in SPARKS_OWN:
                self._sparks[low] = value
            elif (later := next((one for one in NOT_YET if one.lower() == low), None)) is not None:
                raise BadSparkOption(f"option {later} is refused: it needs {NOT_YET[later]}")
            else:
                raise _unknown(name, [*names, *(f"client.{one}" for one in CLIENT_OPTIONS)])

    def is_on(self, name: str) -> bool:
        """One of Spark's own."""
        return self._sparks.get(name.lower(), "false").lower() == "true"

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise BadSparkOption(f"option {name} is missing")
        return value

    def parsed(self, name: str, parse: Callable[[str], T], default: T, what: str) -> T:
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse(value)
        except (ValueError, KeyError) as cause:
            raise BadSparkOption(f"option {name} is {what}, not {value!r}") from cause

    def number(self, name: str, default: int, least: int = 0) -> int:
        value = self.parsed(name, int, default, "a whole number")
        if value < least:
            raise BadSparkOption(f"option {name} is at least {least}, not {value}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return self.parsed(name, lambda text: {"true": True, "false": False}[text.lower()], default, "true or false")

    def choice(self, name: str, kind: Callable[[str], T], default: T, of: Iterable[str]) -> T:
        return self.parsed(name, lambda text: kind(text.lower()), default, f"one of {', '.join(of)}")

    def access(self) -> Access:
        timeout_ms = self.number("operationTimeoutMs", 30_000, 1)
        return Access.of(self.required("serviceUrl"), self.client, timeout_ms, self.text("adminUrl") or None)


def _unknown(name: str, names: list[str]) -> BadSparkOption:
    near = get_close_matches(name.lower(), [one.lower() for one in names], 1, 0.6)
    meant = next((f"; did you mean {one}?" for one in names if near and one.lower() == near[0]), "")
    return BadSparkOption(f"there is no option {name}{meant}")


@dataclass(frozen=True, slots=True)
class Point:
    """Where to begin or end: a word, a time, or an offset."""

    word: str | None = None  # "earliest" or "latest"
    time_ms: int | None = None
    offset: Mapping[str, Any] | None = None
    latest_if_none: bool = False  # no message at or after the time: go to the end, instead of an error


EARLIEST, LATEST = Point("earliest"), Point("latest")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    access: Access
    topics: tuple[str, ...]
    topics_pattern: str | None
    start: Point
    end: Point | None  # None: what is there at planning, and no end of a stream
    rows_max: int  # per trigger; 0: any
    bytes_max: int
    rows_min: int
    trigger_delay_ms: int
    packing: Packing
    records_per_partition_max: int
    bytes_per_partition_max: int
    alignment: Alignment
    wanted: KeyFilter
    fails_on_loss: bool
    subscription: str | None
    reader_prefix: str
    subject: Subject
    has_properties: bool
    metadata: Metadata
    has_key_bytes: bool
    value_format: ValueFormat
    metadata_age_ms: int
    fetch_retries: int
    fetch_backoff_ms: int
    prefetch_bytes: int
    batch_rows: int
    batch_bytes: int
    decryption: Decryption | None

    @staticmethod
    def of(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        given = Given(options, SOURCE_OPTIONS)
        topics, pattern = _topics(given)
        subject = given.choice("metadata", Subject, Subject.MESSAGES, Subject)
        _check_kind(given, subject, streaming=streaming)
        given.choice("isolation", Isolation, Isolation.READ_COMMITTED, Isolation)
        keeps_order = given.flag("preserveKeyOrder", streaming)
        least = given.number("minPartitions", 1, 1)
        return SourceOptions(
            access=given.access(),
            topics=topics,
            topics_pattern=pattern,
            start=_point(given, "starting", LATEST if streaming else EARLIEST) or LATEST,
            end=_point(given, "ending", None),
            rows_max=given.number("maxRowsPerTrigger", 0),
            bytes_max=given.number("maxBytesPerTrigger", 0),
            rows_min=given.number("minRowsPerTrigger", 0),
            trigger_delay_ms=given.parsed("maxTriggerDelay", _duration_ms, 15 * 60_000, "a duration like 30s or 15m"),
            packing=Packing(least, max(given.number("maxPartitions", 32, 1), least), 0, keeps_order),
            records_per_partition_max=given.number("maxRecordsPerPartition", 0),
            bytes_per_partition_max=given.number("maxBytesPerPartition", 0),
            alignment=given.choice("readAlignment", Alignment, Alignment.BACKLOG, ("backlog", "publishTime")),
            wanted=KeyFilter(
                given.parsed("keys", read_keys, None, "keys with commas between them, or a JSON list of texts"),
                given.parsed("keyHashRange", read_spans, None, "hexadecimal like 0000-7fff, several with commas"),
            ),
            fails_on_loss=given.flag("failOnDataLoss", True),
            subscription=given.text("subscription"),
            reader_prefix=given.text("subscriptionPrefix") or "spark",
            subject=subject,
            has_properties=given.flag("includeProperties", True),
            metadata=given.choice("includeMetadata", Metadata, Metadata.ALL, Metadata),
            has_key_bytes=given.flag("includeKeyBytes", False),
            value_format=given.choice("valueFormat", ValueFormat, ValueFormat.BINARY, ValueFormat),
            metadata_age_ms=given.number("metadataMaxAgeMs", 100, 1),
            fetch_retries=given.number("fetchRetries", 5),
            fetch_backoff_ms=given.number("fetchRetryBackoffMs", 200),
            prefetch_bytes=given.number("prefetchBytes", 16 << 20, 1),
            batch_rows=given.number("arrowBatchRows", 10_000, 1),
            batch_bytes=given.number("arrowBatchBytes", 2 << 20, 1),
            decryption=decryption_of(given.text),
        )

    def counting(self) -> dict[str, bool]:
        """Options that need counts of messages or bytes, and whether they are set."""
        return {
            "maxRowsPerTrigger": bool(self.rows_max),
            "maxBytesPerTrigger": bool(self.bytes_max),
            "minRowsPerTrigger": bool(self.rows_min),
            "maxRecordsPerPartition": bool(self.records_per_partition_max),
            "maxBytesPerPartition": bool(self.bytes_per_partition_max),
        }


def _check_kind(given: Given, subject: Subject, *, streaming: bool) -> None:
    """What only one kind of query can have."""
    if streaming:
        for name in ("maxRecordsPerPartition", "maxBytesPerPartition"):
            if given.text(name) is not None:
                raise BadSparkOption(
                    f"option {name} is for batch queries: the tasks of a stream's batch must follow from its offsets "
                    "alone. maxRowsPerTrigger and maxBytesPerTrigger limit a batch"
                )
        if subject is Subject.SEGMENTS:
            raise BadSparkOption("metadata=segments is for batch queries")
    elif given.text("subscription") is not None:
        raise BadSparkOption("option subscription is for streams: a batch query commits nothing")


def _topics(given: Given) -> tuple[tuple[str, ...], str | None]:
    ways = [name for name in ("topic", "topics", "topicsPattern") if given.text(name)]
    if len(ways) != 1:
        raise BadSparkOption(f"give one of topic, topics, topicsPattern (given: {', '.join(ways) or 'none'})")
    if ways == ["topicsPattern"]:
        return (), given.text("topicsPattern")
    names = given.required(ways[0]).split(",") if ways == ["topics"] else [given.required("topic")]
    return tuple(dict.fromkeys(str(TopicName.parse(name.strip())) for name in names)), None


def _point(given: Given, prefix: str, default: Point | None) -> Point | None:
    offsets, time = given.text(f"{prefix}Offsets"), given.text(f"{prefix}Timestamp")
    if offsets is not None and time is not None:
        raise BadSparkOption(f"{prefix}Offsets and {prefix}Timestamp exclude each other")
    if time is not None:
        moment = given.parsed(f"{prefix}Timestamp", moment_ms, 0, "milliseconds since 1970 or an ISO time")
        strategy = given.text("startingTimestampStrategy") or "latest"
        if strategy not in ("error", "latest"):
            raise BadSparkOption(f"option startingTimestampStrategy is error or latest, not {strategy!r}")
        return Point(time_ms=moment, latest_if_none=strategy == "latest" or prefix == "ending")
    if offsets is None:
        return default
    if offsets.lower() in ("earliest", "latest"):
        return Point(offsets.lower())
    try:
        found = json.loads(offsets)
    except ValueError as cause:
        raise BadSparkOption(f"option {prefix}Offsets is earliest, latest or offset JSON, not {offsets!r}") from cause
    return Point(offset=found)


def moment_ms(text: str) -> int:
    """Milliseconds since 1970, as a number or from an ISO time (UTC unless it says otherwise)."""
    try:
        return int(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _duration_ms(text: str) -> int:
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    number = text.rstrip("mshMSH ")
    return int(float(number) * units[text[len(number) :].strip().lower() or "ms"])
