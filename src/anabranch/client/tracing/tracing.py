"""Port for tracing. Off by default: producers and consumers then do not look at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from anabranch.client.arguments import check_has
from anabranch.client.errors import BadOption
from anabranch.client.messages.message import Message

EndSpan = Callable[[BaseException | None], None]
"""Ends a span, with the error if there was one. Called once."""


class Tracing(Protocol):
    """Called on the event loop; must not raise."""

    def send(self, topic: str, messages: int) -> tuple[Mapping[str, str], EndSpan]:
        """Messages are sent. Returns properties that carry the context to consumers, and what ends the span when the
        broker has stored them."""

    def receive(self, topic: str, subscription: str, messages: Sequence[Message]) -> None:
        """Messages are handed out to the application."""

    def process(self, topic: str, subscription: str, message: Message) -> AbstractContextManager[object]:
        """Entered while the handler of `run` processes the message. Exceptions pass through it."""


def tracing_of(option: Tracing | bool | None) -> Tracing | None:
    """The meaning of `connect(tracing=…)`. Raises BadOption if the library is missing."""
    if option is None or option is False:
        return None
    if option is not True:
        check_has(option, ("send", "receive", "process"), "tracing", "True, an object with the methods of Tracing")
        return option
    try:
        from anabranch.client.tracing.opentelemetry_tracing import OpenTelemetryTracing
    except ImportError as error:
        raise BadOption("tracing=True needs OpenTelemetry: pip install 'anabranch[otel]'") from error
    return OpenTelemetryTracing()
