"""Connections to brokers: one connection, the pool with lookups, and the reconnect loop of producers and consumers.

Must not know what producers and consumers do with a connection.

| module | what it is |
|---|---|
| `address` | service URLs |
| `dial_failure` | why a broker cannot be connected: TLS, or a port with another protocol |
| `connection_state` | state machine of one connection: handshake, keep-alive, requests and their answers |
| `connection` | one connection on the event loop, with listeners for producers, consumers and sessions |
| `connection_pool` | one connection per broker; lookups, redirects, number of partitions |
| `reconnect` | lookup, attach, wait for the loss, back off, again |
"""
