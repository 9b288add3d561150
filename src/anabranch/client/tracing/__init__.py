"""Traces of messages: spans for send, receive and process, with their context in message properties.

The package must not know producers and consumers; they call the port. `opentelemetry_tracing` is imported only when
tracing is on, because its library is an extra.

| module | what it is |
|---|---|
| `tracing` | the port `Tracing`, and which implementation `connect(tracing=…)` means |
| `opentelemetry_tracing` | the port on the API of OpenTelemetry |
"""
