"""Settings of a node: frozen dataclasses, one group per part. Values only; no file is read here.

| module | what it is |
|---|---|
| `advertised_listeners` | addresses of a broker by listener name |
| `cluster` | membership in a cluster |
| `node` | the whole tree, network, metadata and log groups |
| `scalable_topics` | controllers and retention of scalable topics |
| `security` | authentication, authorization and TLS |
"""
