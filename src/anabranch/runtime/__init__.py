"""Ports to the operating system and the event loop: clock, tasks, disk, network, settings, logs.

The only package that may read a clock, sleep or draw random numbers. Does not know what bytes mean, and imports only
the standard library (and h11 for HTTP).

| module | what it is |
|---|---|
| `clock` | port: time, sleep and timers |
| `chance` | port: random numbers |
| `blocking` | port: blocking work on threads |
| `disk` | port: files, locks, shared words |
| `net` | port: listeners and byte streams, plain TCP |
| `net_tls` | the same with TLS |
| `dial` | outgoing connections |
| `reach` | whether a port accepts connections, and whether it expects TLS |
| `http_client` | HTTP/1.1 client connection |
| `tls` | server TLS context that follows changed files |
| `credentials` | tokens, passwords and certificates of a client |
| `tasks` | owners of background tasks; yielding in long loops |
| `changes` | waiting for changes without missing one |
| `retry_delays` | delays between attempts |
| `loop_thread` | an event loop on its own thread |
| `garbage` | tuning of the garbage collector |
| `prometheus_format` | metrics in Prometheus text format |
| `logs` | log output as text or JSON |
| `settings` | settings from file, environment and flags |
"""
