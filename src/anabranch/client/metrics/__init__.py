"""Metrics of the SDK: counters of producers and consumers, as values and as Prometheus text.

The package must not know producers and consumers. They keep the counters, and count per entry, not per message.

| module | what it is |
|---|---|
| `metrics` | what `client.metrics()` returns: frozen values |
| `counters` | counters that producers and consumers increase |
| `latencies` | histogram of send latencies, and its quantiles |
| `window` | rates and quantiles of the last minute, from samples |
| `prometheus_text` | the values in Prometheus' text format, with a bounded number of series |
"""
