"""From SEND to receipt: producers of one topic, deduplication, append, rate limit.

It must not know subscriptions, policies or how a connection decodes frames.

| module | what it is |
|---|---|
| `publisher` | the publish path of one persistent topic |
| `producer` | one attached producer, its flow-control window and its receipts |
| `producer_access` | the four access modes as a state machine |
| `publish_rate_limiter` | publish rate of one topic |
| `deduplication` | switches deduplication on and off, recovers its state after a restart |
| `sequence_ids` | the deduplication table: highest sequence id per producer name |
| `latency_histogram` | publish latencies in Pulsar's buckets |
"""
