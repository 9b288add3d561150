"""All topics that are loaded on this broker: opened on demand, swept, unloaded when idle.

It must not know connections or commands.

| module | what it is |
|---|---|
| `registry` | the loaded topics: open, close, delete, sweep |
| `factory` | makes a topic from its log and the policies of its namespace |
| `activity` | set of topics with activity |
| `unloaded_scan` | loads unloaded topics from time to time, because of time-based policies |
| `rate_sampler` | samples counters of active topics every 10 seconds |
| `rate_meter` | rates of counters over a rolling window |
"""
