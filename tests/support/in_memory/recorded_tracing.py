"""Two implementations of the SDK's tracing port that record spans: one by itself, one on the API of OpenTelemetry."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
)

from anabranch import Message
from anabranch.client.tracing.opentelemetry_tracing import OpenTelemetryTracing
from anabranch.client.tracing.tracing import EndSpan, Tracing


@dataclass
class Recorded:
    """One span, whichever implementation made it."""

    operation: str
    topic: str
    subscription: str | None = None
    count: int = 1
    origins: list[int] = field(default_factory=list)  # spans that sent the messages, by number
    number: int = 0
    is_ended: bool = False
    error: str | None = None


class RecordedTracing:
    """Carries the number of the span in a property."""

    def __init__(self) -> None:
        self.spans: list[Recorded] = []

    def _new(self, span: Recorded) -> Recorded:
        span.number = len(self.spans) + 1
        self.spans.append(span)
        return span

    def send(self, topic: str, messages: int) -> tuple[Mapping[str, str], EndSpan]:
        span = self._new(Recorded("send", topic, count=messages))

        def end(error: BaseException | None) -> None:
            assert not span.is_ended
            span.is_ended, span.error = True, None if error is None else type(error).__name__

        return {"span": str(span.number)}, end

    def receive(self, topic: str, subscription: str, messages: Sequence[Message]) -> None:
        origins = [int(one.properties["span"]) for one in messages if "span" in one.properties]
        self._new(Recorded("receive", topic, subscription, len(messages), origins, is_ended=True))

    def process(self, topic: str, subscription: str, message: Message) -> AbstractContextManager[object]:
        return self._process(
            self._new(Recorded("process", topic, subscription, origins=[int(message.properties["span"])]))
        )

    @contextmanager
    def _process(self, span: Recorded) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            span.error = type(error).__name__
            raise
        finally:
            span.is_ended = True


class RecordedSpan(Span):
    def __init__(self, record: Recorded) -> None:
        self.record = record
        self._context = SpanContext(7, record.number, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def end(self, end_time: int | None = None) -> None:
        assert not self.record.is_ended
        self.record.is_ended = True

    def get_span_context(self) -> SpanContext:
        return self._context

    def set_attributes(self, attributes: Mapping[str, Any]) -> None: ...

    def set_attribute(self, key: str, value: Any) -> None: ...

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None: ...

    def update_name(self, name: str) -> None: ...

    def is_recording(self) -> bool:
        return not self.record.is_ended

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None: ...

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        self.record.error = type(exception).__name__


class RecordingProvider(TracerProvider, Tracer):
    """The least that OpenTelemetry's API asks of an SDK."""

    def __init__(self) -> None:
        self.spans: list[Recorded] = []
        self.attributes: list[dict[str, Any]] = []
        self.kinds: list[SpanKind] = []
        self._numbers = itertools.count(1)

    def get_tracer(self, *args: Any, **options: Any) -> Tracer:
        return self

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        parent = trace.get_current_span(context).get_span_context()
        contexts = [one.context for one in links or ()] + ([parent] if parent.is_valid else [])
        assert name == f"{attributes['messaging.operation.name']} {attributes['messaging.destination.name']}"
        record = Recorded(
            attributes["messaging.operation.name"],
            attributes["messaging.destination.name"],
            attributes.get("messaging.destination.subscription.name"),
            attributes.get("messaging.batch.message_count", 1),
            [one.span_id for one in contexts],
            next(self._numbers),
        )
        self.spans.append(record)
        self.attributes.append(dict(attributes))
        self.kinds.append(kind)
        return RecordedSpan(record)

    @contextmanager
    def start_as_current_span(  # type: ignore[override]  # OpenTelemetry's own decorator is not public
        self, name: str, *args: Any, **options: Any
    ) -> Iterator[Span]:
        with trace.use_span(self.start_span(name, *args, **options), end_on_exit=True) as span:
            yield span


def recorded(kind: str) -> tuple[Tracing, list[Recorded]]:
    """The port, and where its spans appear."""
    if kind == "own":
        own = RecordedTracing()
        return own, own.spans
    provider = RecordingProvider()
    return OpenTelemetryTracing(provider), provider.spans
