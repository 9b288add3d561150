"""`Tracing` on the API of OpenTelemetry. Spans go wherever the application configured its tracer provider.

Attributes follow the semantic conventions for messaging. The context travels in the properties `traceparent` and
`tracestate` (W3C Trace Context); baggage does not, because every consumer of the topic could read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from anabranch.client.messages.message import Message
from anabranch.client.tracing.tracing import EndSpan

LINKS_MAX = 128  # of one receive span
_CONTEXT = TraceContextTextMapPropagator()


class OpenTelemetryTracing:
    def __init__(self, provider: TracerProvider | None = None) -> None:
        """`provider` None: the global one, also if it is set later."""
        self._tracer = trace.get_tracer("anabranch", tracer_provider=provider)

    def send(self, topic: str, messages: int) -> tuple[Mapping[str, str], EndSpan]:
        attributes = _attributes("send", topic) | {"messaging.batch.message_count": messages}
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        properties: dict[str, str] = {}
        _CONTEXT.inject(properties, trace.set_span_in_context(span))

        def end(error: BaseException | None) -> None:
            if error is not None:
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, str(error)))
            span.end()

        return properties, end

    def receive(self, topic: str, subscription: str, messages: Sequence[Message]) -> None:
        contexts = (trace.get_current_span(_context_of(message)).get_span_context() for message in messages[:LINKS_MAX])
        attributes = _attributes("receive", topic, subscription) | {"messaging.batch.message_count": len(messages)}
        links = [Link(context) for context in contexts if context.is_valid]
        self._tracer.start_span(f"receive {topic}", kind=SpanKind.CONSUMER, attributes=attributes, links=links).end()

    def process(self, topic: str, subscription: str, message: Message) -> AbstractContextManager[object]:
        attributes = _attributes("process", topic, subscription) | {"messaging.message.id": str(message.id)}
        return self._tracer.start_as_current_span(
            f"process {topic}", context=_context_of(message), kind=SpanKind.CONSUMER, attributes=attributes
        )


def _context_of(message: Message) -> Context:
    """The context of the producer's span; empty if the message has none."""
    return _CONTEXT.extract(message.properties, Context())


def _attributes(operation: str, topic: str, subscription: str | None = None) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "messaging.system": "pulsar",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if subscription is not None:
        found["messaging.destination.subscription.name"] = subscription
    return found
