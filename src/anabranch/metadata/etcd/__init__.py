"""The metadata store on etcd, spoken to with stubs of our own over `grpc.aio`. Needs the extra `anabranch[etcd]`.

| module | what it knows |
|---|---|
| `store` | the port: what each call does with reads and transactions |
| `records` | how a value, its version and its times are kept in one etcd key; what was seen lately |
| `keys` | from paths to byte ranges and back |
| `requests` | the transactions as messages |
| `bulk` | many writes at once |
| `scanning` | pages of many keys |
| `lease` | sessions |
| `watching` | the one watch stream |
| `channel` | endpoints, deadlines, retries, errors |
"""
