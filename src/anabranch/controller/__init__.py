"""Controllers of scalable topics: they decide on splits, merges, subscriptions and the assignment of segments.

The package does not know the broker: both meet through the ports `interface`, `segment_host`, `placement` and
`namespace_rules`. State machines decide and never await; shells perform their effects and deliver the outcomes.

| module | what it is |
|---|---|
| `autoscale` | automatic splits and merges of led topics |
| `events` | events, effects and errors shared by `topic` and `group` |
| `group` | the consumers of ordered subscriptions: sessions, assignment, drained segments |
| `interface` | port: what brokers ask of the controller |
| `layout_watches` | layout watches of clients, on any broker |
| `migration` | starts the migration of a regular topic |
| `namespace_rules` | port: namespace policies |
| `regular_topics` | synthetic layouts of regular topics |
| `operation_metrics` | counters of splits, merges and leader terms |
| `placement` | port: which broker owns a name |
| `record_store` | reads and writes of the controller's records in the metadata store |
| `records` | the stored values, their codecs and keys |
| `segment_host` | port: requests to the owners of segments |
| `service` | the scalable topics of one broker: implements `interface.ScalableTopics` |
| `settings` | settings of scalable topics |
| `topic` | one led topic: split, merge, delete, subscriptions, garbage collection |
| `topic_controllers` | the topics that this broker leads: loading, resuming, sweeping |
| `topic_status` | status and statistics of led topics as plain values |
"""
