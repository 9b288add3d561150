"""The broker's side of the controller's port `SegmentHost`: requests for segments, routed to their owner.

The package must not know what an operation is for, nor when a topic splits.

| module | what it is |
|---|---|
| `ancestor_sequences` | last sequence ids of a producer on the ancestors of a segment |
| `event_broadcast` | sends events of segments to all other brokers |
| `host` | implements `SegmentHost`: performs a request here or calls the owner |
| `local_segments` | performs the requests for the segments of this broker |
| `request_batches` | requests to one other broker, several in one peer call |
| `request_codec` | requests, answers, events and stats as JSON |
| `seal_notifications` | tells producers the children of a sealed segment |
| `segment_listener` | admission of clients, seal notifications and events of local segments |
| `segment_stats` | rolling rates and stats of loaded segments |
| `tombstone_sweeper` | deletes expired tombstones |
| `topic_layouts` | port to the records of scalable topics |
"""
