"""Between receiving and acknowledging: handlers that the SDK calls.

The package must not know consumers. They give a runner their own receive, ack and nack.

| module | what it is |
|---|---|
| `handler_runner` | `consumer.run(handler)`: receives, calls handlers concurrently, acknowledges, drains |
| `handler_state` | its state machines: which message may start, and what may be acknowledged |
"""
