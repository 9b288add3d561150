"""Brokers as Spark's driver and executors use them: blocking calls, one set of connections per process.

| module | what it is |
|---|---|
| `access` | addresses and credentials of a cluster; a value that is sent to executors |
| `cluster_client` | connections of one process, questions about topics |
| `entry_fetcher` | reads one range of entries |
"""
