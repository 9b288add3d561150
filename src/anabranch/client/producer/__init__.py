"""Sending: the producer of applications, its state over all segments, and one producer on the wire per segment.

Modules named `X_state` never await and read no clock: calls come in, and effects go out. `X` performs the effects.
The package knows nothing of consumers.

| module | what it is |
|---|---|
| `producer` | `Producer`: what applications call; numbers the messages, bounds their memory, sets their futures |
| `traced_producer` | the same with a span per call |
| `producer_state` | routes messages to segment lanes, and moves them when segments are split or merged |
| `producer_effects` | `SegmentLane`, and the effects of `producer_state` |
| `segment_producers` | performs these effects: the running segment producers, and their callbacks |
| `segment_producer` | one producer on the wire: attaches to a segment, sends entries, receives receipts |
| `segment_producer_state` | the entries for one segment: open batch, waiting, in flight; flow-control credits |
| `segment_router` | which segment lane a message takes |
| `ancestry` | successors of sealed segments, and what the ancestors of a segment have stored of a producer |
| `open_batch` | the open batch of a segment lane, and the entry that it becomes |
| `bucket_entries` | entries of a batch for a segment with entry buckets: one per bucket, stamped |
| `bulk_send` | many messages of one call: encoded together, with one outcome |
| `late_receipts` | receipts that arrive after the broker closed a producer |
| `memory_limit` | bounds the bytes without a receipt, and queues the senders that wait |
| `options` | the options of a producer |
"""
