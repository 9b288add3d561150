"""Between receiving and acknowledging: handlers that the SDK calls, and acks that it sends by itself.

The package must not know consumers. They give a runner their own receive, ack and nack.

| module | what it is |
|---|---|
| `handler_runs` | `run` of a consumer: one run at a time |
| `handler_runner` | `consumer.run(handler)`: receives, calls handlers concurrently, acknowledges, drains |
| `auto_acks` | `ack_every`: acks that a stream consumer sends by itself |
| `ack_schedule` | its state machine: what is processed, and when it is acknowledged |
| `handler_threads` | handlers of the blocking form, on threads |
| `handler_state` | its state machines: which message may start, and what may be acknowledged |
"""
