"""The metadata store on Oxia: `oxia://host[:port][,host[:port]][/namespace[/prefix]]`, with its own stubs over gRPC.

Only this package may import grpc and xxhash for Oxia (extra `anabranch[oxia]`). `oxia.proto` has the messages.

| module | what it is |
|---|---|
| `store` | the store |
| `records` | Oxia's records to values of the port, the store's address |
| `reader` | get, children, ordered walks over all shards |
| `shard_writer` | one stream of write batches per shard |
| `bulk` | many writes, grouped by shard |
| `sessions` | a session as one Oxia session per shard |
| `notifications` | changes of one shard, resumed by offset |
| `shard_leaders` | the leader of each shard, retries |
| `server_channel` | one server: its channel and service name |
| `shards` | which shard a key belongs to |
| `key_order` | Oxia's order of keys, merging of sorted pages |
| `errors` | refusals of a server, and their meaning |
"""
