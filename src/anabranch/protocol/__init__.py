"""The wire, without I/O: bytes in, values out; values in, bytes out. Knows no sockets, clocks, topics or storage.

| module          | knows                                                            |
|-----------------|------------------------------------------------------------------|
| `frames`        | sizes: a byte stream to frames                                   |
| `commands`      | a frame's command to a protobuf message, and the two hot frames  |
| `replies`       | what a broker says: one function per command                     |
| `server_errors` | `Error.code` to the wire's numbers                               |
| `entry`         | what is inside an entry's bytes: checksum, metadata, batch       |
| `handshake`     | who may say what before the connection is open; keep-alive       |
| `keyhash`       | the key hash, fast                                               |
| `pulsar_pb2`    | generated from `pulsar.proto`                                    |
"""
