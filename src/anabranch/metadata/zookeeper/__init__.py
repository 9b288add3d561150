"""The ZooKeeper metadata store with a client of its own: pipelined, with multi-read and recursive watches.

Read in this order: `jute` (bytes), `keys` (names), `channel` (one TCP connection), `connection` (one ZooKeeper session
over many of them), `nodes` (one key), `changes` (events), `bulk` (many keys), `session` and `store` (the port).
"""
