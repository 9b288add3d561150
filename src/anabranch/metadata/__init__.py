"""Metadata: small versioned records on a pluggable store, and coordination recipes on top.

It knows nothing of topics, brokers or messages: its users define keys and values.

| module | what it is |
|---|---|
| `interface` | the port: MetadataStore, Session, Watch, errors |
| `open` | metadata URL to store |
| `write_gate` | the gate that every write passes |
| `session_base` | base of the backends' sessions |
| `watch_fanout` | changes to the watches of one process |
| `envelope` | logical versions and times that survive a move |
| `store_security` | TLS and credentials in metadata URLs |
| `grpc_calls` | shared by the backends on gRPC |
| `archive` `transfer` | export, import, deletion of trees |
| `migration` | moves all metadata to another store while the cluster runs |
| `recipes` | sessions, elections, membership, sequential keys |
| `memory` `sqlite` `zookeeper` `etcd` `oxia` | the backends |
"""
