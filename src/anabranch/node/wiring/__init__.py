"""The parts of `node.node`: each module constructs one group of objects. No decisions are made here.

| module | what it is |
|---|---|
| `cluster` | placement, peers and membership of a broker in a cluster |
| `listeners` | binary and HTTP ports, plain and TLS |
| `scalable_topics` | placement changes for the controllers; crash points for tests |
| `security` | access control and TLS from settings |
| `segments` | owner side of scalable topics |
| `stores` | metadata store, ledgers and catalog |
| `topic_lists` | topics of namespaces that clients watch |
"""
