"""Writing topics: each row once, in order per key.

The writers do not use the SDK's producer, because sequence ids must belong to rows, not to batches.

| module | what it is |
|---|---|
| `writers` | what a write task does, and the delivery guarantees |
| `topic_writer` | one task's output to one topic |
| `segment_writer` | one producer on one segment, with its unconfirmed entries |
| `replay_check` | compares a replayed batch with the stored rows |
| `row_checksum` | checksum of a task's rows for one segment |
| `buckets` | rows in a fixed number of buckets by key |
"""
