"""Metadata in Oxia: `oxia://host[:port][,host[:port]][/namespace[/prefix]]`, spoken over gRPC with stubs of our own.

| module | what it knows |
|---|---|
| `oxia.proto` | the messages that we send and read |
| `refusals` | what a server says when it refuses, and what that means on the port |
| `ordering` | Oxia's order of keys: ranges, what comes next, merging the shards' pages |
| `shards` | which shard a key belongs to; pure |
| `channels` | one server: its channel and under which service name it answers |
| `cluster` | who leads which shard, kept current; retries of what may be repeated |
| `writing` | one stream of write batches per shard, pipelined |
| `sessions` | one session of the port = one Oxia session per shard it has keys on |
| `notifications` | what changed, per shard, resumed by offset |
| `reading` | get, children, ordered walks over all shards |
| `store` | the port, put together from these |

Importing the store imports grpc and xxhash (extra `oxia`); nothing else in the house may.
"""
