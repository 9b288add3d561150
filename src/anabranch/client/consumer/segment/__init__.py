"""The consumer of one partition or segment on the wire, of a durable subscription or without one.

It must not know which segments are read, nor when: the three kinds of consumers decide that.

| module | what it is |
|---|---|
| `segment_consumer` | consumer of one partition or segment on the wire |
| `segment_consumer_spec` | what it subscribes to, and under which assignment |
| `segment_consumer_state` | its state machine: permits, messages held, acks |
| `effects` | what the state machine asks the shell to do |
| `stream_segment_consumer` | segment consumer of an ordered subscription; acks of parents before children |
| `shared_segment_consumer` | segment consumer that shares its segment with others, by entry buckets |
| `segment_reader` | segment consumer without a durable cursor |
| `key_wait` | deliveries that wait for a data key |
| `batch_bits` | messages of a batch as bits, and message ids in acks |
| `chunk_tracker` | chunked messages of one segment consumer |
"""
