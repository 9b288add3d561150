"""Stats JSON in Pulsar's shape and Prometheus metrics. Reads topics, changes nothing.

| module | what it is |
|---|---|
| `topic_stats` | stats and internal stats of a topic; sums over partitions |
| `subscription_stats` | stats of a subscription and its consumers |
| `metrics` | the `/metrics` page of this broker |
| `scalable_topic_metrics` | metrics of scalable topics |
"""
