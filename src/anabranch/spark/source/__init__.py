"""Reading topics: batch and streaming.

| module | what it is |
|---|---|
| `planning` | from options to offsets and ranges, in the driver |
| `admission` | limits on what one micro-batch takes |
| `stream_reader` | the streaming reader of one query |
| `read_task` | the ranges of one task as Arrow batches, in executors |
| `decryption` | entries decrypted before they become rows |
| `arrow_rows` | entries as Arrow rows |
| `value_decoder` | values as text or as columns of the topic's schema |
| `segments_table` | `metadata=segments`: the segments of a topic as rows |
| `subscription_hold` | what a query's `subscription` retains |
| `offsets_at_time` | offsets at a point in time |
"""
