"""Brokers as Spark's driver and executors use them: blocking calls, one set of connections per process.

| module | what it is |
|---|---|
| `access` | addresses and credentials of a cluster; a value that is sent to executors |
| `cluster_client` | connections of one process, questions about topics |
| `extents` | what a cluster can say about its topics, by kind of cluster |
| `broker_extents` | the same from Anabranch's brokers |
| `pulsar_extents` | the same from Apache Pulsar's brokers |
| `pulsar_probe` | a reader that only asks questions |
| `entry_fetcher` | reads one range of entries |
"""
