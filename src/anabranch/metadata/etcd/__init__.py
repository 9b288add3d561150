"""The metadata store on etcd, with its own stubs over `grpc.aio`. Needs the extra `anabranch[etcd]`.

| module | what it is |
|---|---|
| `store` | the store: each call as reads and transactions |
| `records` | value, version and times in one etcd key; cache of recent records |
| `keys` | keys of the port to etcd's key ranges and back |
| `requests` | transactions as messages |
| `bulk` | many writes at once |
| `scan` | many keys in pages |
| `lease` | sessions |
| `watch` | the watch stream |
| `channel` | endpoints, deadlines, retries, errors |
"""
