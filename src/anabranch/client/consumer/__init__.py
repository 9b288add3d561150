"""Consumers: queue, stream and checkpoint consumers, and the consumer of one segment that all of them use.

`X` is the asyncio shell of its state machine `X_state`. The package must not know producers; dead letters are sent
through a function that the client gives.

| module | what it is |
|---|---|
| `consumer` | base of the three kinds: topics, segment consumers, one receive queue |
| `subscription_calls` | seek and unsubscribe on scalable topics, through the controller |
| `consumer_options` | options of every kind, and the spec of a segment's consumer |
| `topic_part` | one topic of a consumer: its view and its segment consumers |
| `namespace_topics` | topics of a namespace consumer: opened and closed as they come and go |
| `queue_consumer` | shared subscription: individual acks, nacks, processing timeout, dead letters |
| `stream_consumer` | ordered subscription: cumulative acks, segments assigned by the controller |
| `stream_session` | session of a stream consumer with one topic's controller |
| `checkpoint_consumer` | reader whose positions the application stores, alone or in a group |
| `receive_queue` | messages that wait for the application, with fair turns between segments |
| `redelivery` | state machine: when nacked and timed-out messages are delivered again |
| `dead_letters` | copies messages that were redelivered too often to another topic |
| `cumulative_acks` | which position of each segment a cumulative ack covers |
| `segment` | consumer of one partition or segment on the wire |
| `controller_session` | registration of a consumer with the controller of a scalable topic |
| `assignment_reconciler` | state machines: segments held against segments assigned, and the order between them |
| `segment_traversal` | state machine: which segments a checkpoint consumer reads, in order of the layout |
| `checkpoint` | positions of a checkpoint consumer as a value and as bytes |
"""
