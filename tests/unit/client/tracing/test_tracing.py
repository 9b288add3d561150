"""`connect(tracing=…)`: which implementation it means, and what happens without the library."""

from __future__ import annotations

import sys

import pytest

from anabranch.client.errors import BadOption
from anabranch.client.messages.message import Message, Origin
from anabranch.client.tracing.opentelemetry_tracing import LINKS_MAX, OpenTelemetryTracing
from anabranch.client.tracing.tracing import tracing_of
from tests.support.in_memory.recorded_tracing import RecordedTracing, RecordingProvider


def message(properties: dict[str, str]) -> Message:
    return Message(Origin("t", 1, 2), -1, b"", None, properties, None, 0)


def test_off_unless_asked_for() -> None:
    assert tracing_of(None) is None
    assert tracing_of(False) is None
    own = RecordedTracing()
    assert tracing_of(own) is own
    assert isinstance(tracing_of(True), OpenTelemetryTracing)


def test_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "anabranch.client.tracing.opentelemetry_tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(BadOption, match=r"anabranch\[otel\]"):
        tracing_of(True)


def test_client_does_not_import_the_library() -> None:
    import subprocess

    program = "import sys, anabranch.client; assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_context_is_w3c_trace_context() -> None:
    properties, end = OpenTelemetryTracing(RecordingProvider()).send("t", 1)
    end(None)
    assert properties == {"traceparent": "00-00000000000000000000000000000007-0000000000000001-01"}


@pytest.mark.parametrize("wrong", [{}, {"traceparent": "nonsense"}, {"traceparent": ""}])
def test_messages_without_a_valid_context_begin_a_trace(wrong: dict[str, str]) -> None:
    provider = RecordingProvider()
    tracing = OpenTelemetryTracing(provider)
    tracing.receive("t", "s", [message(wrong)])
    with tracing.process("t", "s", message(wrong)):
        pass
    assert [(one.operation, one.origins, one.is_ended) for one in provider.spans] == [
        ("receive", [], True),
        ("process", [], True),
    ]


def test_links_of_a_received_batch_are_bounded() -> None:
    provider = RecordingProvider()
    tracing = OpenTelemetryTracing(provider)
    properties, _ = tracing.send("t", 1)
    tracing.receive("t", "s", [message(dict(properties))] * (LINKS_MAX + 10))
    assert len(provider.spans[1].origins) == LINKS_MAX
    assert provider.spans[1].count == LINKS_MAX + 10
