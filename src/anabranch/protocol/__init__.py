"""The wire protocol without I/O: bytes in, values out, and back. Does not know sockets, clocks, topics or storage.

| module | what it is |
|---|---|
| `frames` | splits a byte stream into frames |
| `commands` | commands as protobuf messages, and the two frames of the hot path |
| `messages` | runs of MESSAGE frames for one consumer |
| `replies` | frames that a broker sends: one function per command |
| `scalable` | frames of scalable topics: layouts, registrations, assignments |
| `segments` | frames and values of segment owners, for Anabranch clients |
| `topics_hash` | digest of the names of topics |
| `server_errors` | maps `Error.code` to the numbers of the wire |
| `entry` | content of an entry: checksum, metadata, batch |
| `managed_clients` | the mark of clients that follow a migrated topic |
| `handshake` | opening of a connection, and keep-alive |
| `keyhash` | the key hash, fast |
| `native` | loads the inner loops in C |
| `errors` | errors of bytes received from a peer |
| `codec/` | many messages at once: batches to columns and back |
"""
