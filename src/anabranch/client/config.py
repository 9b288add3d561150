"""Option values of the SDK: frozen dataclasses. Times are seconds or `timedelta`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from numbers import Real
from typing import TYPE_CHECKING, Literal

from anabranch.client.arguments import shown
from anabranch.client.errors import BadOption

if TYPE_CHECKING:
    from anabranch.client.encryption.options import Encryption

Seconds = float | timedelta


def seconds(value: Seconds, what: str = "a time") -> float:
    """Raises BadOption, with `what` as the name of the argument."""
    if type(value) is float:  # the usual case, and fast
        return value
    given: object = value
    if isinstance(given, timedelta):
        return given.total_seconds()
    if isinstance(given, Real):  # also the numbers of numpy
        return float(given)
    raise BadOption(f"{what} must be a number of seconds or a timedelta, not {shown(value)}")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise BadOption(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """A batch is sent when it reaches `max_delay`, `max_messages` or `max_bytes`, whichever comes first."""

    max_delay: Seconds = 0.001
    max_messages: int = 1000
    max_bytes: int = 128 * 1024

    def __post_init__(self) -> None:
        _require(seconds(self.max_delay, "Batching.max_delay") >= 0, "Batching.max_delay must not be negative")
        _require(self.max_messages >= 1, "Batching.max_messages must be at least 1")
        _require(self.max_bytes >= 1, "Batching.max_bytes must be at least 1")


class AccessMode(StrEnum):
    """Which other producers may be connected to the topic at the same time."""

    SHARED = "shared"  # any
    EXCLUSIVE = "exclusive"  # none; opening is refused if there is another one
    EXCLUSIVE_WITH_FENCING = "exclusive-with-fencing"  # none; opening disconnects and fences the others
    WAIT_FOR_EXCLUSIVE = "wait-for-exclusive"  # none; opening waits until the others are gone

    @classmethod
    def named(cls, name: str) -> AccessMode:
        try:
            return cls(name)
        except ValueError as cause:
            raise BadOption(f"access is one of {', '.join(one.value for one in cls)}, not {name!r}") from cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunking:
    """Messages above the broker's size limit are cut into chunks of at most that limit and `chunk_bytes`."""

    chunk_bytes: int = 5 * 1024 * 1024

    def __post_init__(self) -> None:
        _require(self.chunk_bytes >= 1, "Chunking.chunk_bytes must be at least 1")


NO_BATCHING = Batching(max_delay=0, max_messages=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays between attempts: `initial`, then multiplied by `multiplier` each time, up to `maximum`."""

    initial: Seconds = 0.1
    maximum: Seconds = 30.0
    multiplier: float = 2.0
    jitter: float = 0.1  # fraction of the delay, half of it in either direction

    def __post_init__(self) -> None:
        _require(
            0 < seconds(self.initial) <= seconds(self.maximum, "Backoff.maximum"),
            "Backoff.initial must be above 0, within maximum",
        )
        _require(self.multiplier >= 1, "Backoff.multiplier must be at least 1")
        _require(0 <= self.jitter <= 1, "Backoff.jitter must be between 0 and 1")

    def delay(self, attempt: int, chance: float) -> float:
        """Delay in seconds before retry number `attempt` (the first is 0); `chance` is random in [0, 1)."""
        longest = seconds(self.maximum)
        # After 64 doublings every delay is `maximum`, and floats must not overflow.
        plain = min(longest, seconds(self.initial) * self.multiplier ** min(attempt, 64))
        return plain * (1 + self.jitter * (chance - 0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessingTimeout:
    """A message without ack or nack for `timeout` is redelivered; `backoff` adds to the timeout of later deliveries."""

    timeout: Seconds
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        _require(seconds(self.timeout, "ProcessingTimeout.timeout") > 0, "ProcessingTimeout.timeout must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was redelivered more than `max_redeliveries` times is moved to `topic` (default: a topic beside
    its own). `initial_subscription` is created there first, so that dead letters are retained until they are read.
    `encryption` encrypts them; consumers with `decryption` must give it."""

    max_redeliveries: int
    topic: str | None = None
    initial_subscription: str | None = None
    encryption: Encryption | None = None

    def __post_init__(self) -> None:
        _require(self.max_redeliveries >= 0, "DeadLetter.max_redeliveries must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class AckEvery:
    """A stream consumer acknowledges by itself what is processed: after `messages` messages, or `interval` after the
    first of them, whichever comes first. A message is processed when the application calls receive again."""

    messages: int | None = None
    interval: Seconds | None = None

    def __post_init__(self) -> None:
        _require(self.messages is not None or self.interval is not None, "AckEvery needs messages or interval")
        _require(self.messages is None or self.messages >= 1, "AckEvery.messages must be at least 1")
        _require(self.interval is None or seconds(self.interval) > 0, "AckEvery.interval must be above 0")

    @classmethod
    def of(cls, value: AckEvery | int | timedelta) -> AckEvery:
        """A number means messages, a timedelta the interval."""
        if isinstance(value, AckEvery):
            return value
        if isinstance(value, timedelta):
            return cls(interval=value)
        _require(type(value) is int, f"ack_every must be a number of messages, a timedelta or AckEvery, not {value!r}")
        return cls(messages=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """What `run` of a stream consumer does when the handler raises: the message is processed again after a delay of
    `backoff`, up to `attempts` times (None: without a limit); later messages of its key wait. `then` says what follows:
    "stop" ends `run` with HandlerFailed, "skip" acknowledges the message and goes on."""

    attempts: int | None = 5
    backoff: Backoff = Backoff()
    then: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        _require(self.attempts is None or self.attempts >= 1, "Retry.attempts must be at least 1, or None")
        _require(self.then in ("stop", "skip"), f"Retry.then must be 'stop' or 'skip', not {self.then!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionPolicy:
    connect_timeout: Seconds = 10.0
    keepalive: Seconds = 30.0
    backoff: Backoff = Backoff()
    partitions_every: Seconds = 60.0  # how often to check a regular topic for new partitions

    def __post_init__(self) -> None:
        _require(
            seconds(self.connect_timeout, "ConnectionPolicy.connect_timeout") > 0,
            "ConnectionPolicy.connect_timeout must be above 0",
        )
        _require(
            seconds(self.keepalive, "ConnectionPolicy.keepalive") > 0, "ConnectionPolicy.keepalive must be above 0"
        )
        _require(
            seconds(self.partitions_every, "ConnectionPolicy.partitions_every") > 0,
            "ConnectionPolicy.partitions_every must be above 0",
        )
