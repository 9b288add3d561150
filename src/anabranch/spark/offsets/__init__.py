"""Positions of a query in its topics, and the steps from one batch to the next. Pure.

| module | what it is |
|---|---|
| `offset` | a cut through the segments of each topic, and its JSON |
| `topic_view` | segments of a topic and what can be read of them |
| `pulsar_topic` | what Apache Pulsar says of a topic, and what follows from it |
| `advance` | how a cut moves, and when children of a segment are opened |
| `partitions` | ranges of entries, packed into partitions |
| `key_filter` | which keys a query wants |
"""
