"""From a durable entry to a consumer, and its acknowledgement.

Dispatchers and selectors are state machines without I/O; `subscription` is their shell. The package must not know
producers, or which topics are loaded.

| module | what it is |
|---|---|
| `subscription` | one subscription: reads for its dispatcher, moves its cursor |
| `consumer` | one attached consumer: permits, unacknowledged entries, MESSAGE frames |
| `dispatcher` | interface of the dispatchers, and what they share |
| `dispatcher_single_active` | Exclusive and Failover |
| `dispatcher_shared` | Shared |
| `dispatcher_key_shared` | Key_Shared |
| `dispatcher_bucket` | Key_Shared by entry buckets: stream consumers that share a segment |
| `consumer_selectors` | round robin, hash ring, sticky ranges, failover choice |
| `divided_entry` | an entry whose messages are not all at one consumer, because some were nacked |
| `redelivery_counts` | how often each message was returned |
| `chunk_affinity` | which consumer receives the remaining chunks of a message |
| `delayed_delivery` | entries with a delivery time, and their timer |
| `acknowledgement` | effect of an acknowledgement on cursor, consumer and dispatcher |
| `compacted_cursor` | a cursor as a reader of the compacted view needs it |
| `entry_reader` | reads entries for a dispatcher, from cache or disk |
| `entry_metadata` | metadata of an entry that dispatch needs |
| `dispatch_rate_limiter` | dispatch rate of one subscription |
"""
