"""Asyncio client of ZooKeeper: sessions, pipelined requests, multi-reads, persistent recursive watches.

Used by the metadata store on ZooKeeper and by BookKeeper storage, so it knows neither: it imports only
`model` and `runtime`, and has its own errors (`errors.py`), which each user translates once.

| module | what it is |
|---|---|
| `jute` | wire format: requests to bytes, answers to values |
| `errors` | error types and the server's error codes |
| `address` | server lists: `HOST:PORT,HOST:PORT` |
| `access` | TLS, credentials, access list of created nodes |
| `channel` | one TCP connection to one server: handshake, requests, pings |
| `connection` | one ZooKeeper session over a succession of channels |

A `Connection` is one session. It finds a server, reconnects, and reports what becomes of the session:

```python
connection = Connection(
    parse_servers("zk1:2181,zk2:2181"),
    SystemClock(),
    timeout_ms=12_000,  # asked for; `connection.timeout_ms` is what the server granted
    request_s=10.0,  # deadline of one operation, reconnecting included
    renew_expired=False,  # True: replace an expired session silently, for users without ephemeral nodes
    access=Access(digest="user:password"),  # TLS and credentials, if the servers want them
    on_phase=print,  # Phase.CONNECTED, CONNECTING, LOST or CLOSED
    on_event=print,  # an `Event` (type, path, zxid) for every watched change
    prepare=watch,  # runs on every new channel, before any request
)
await connection.open(connection.deadline())
await connection.call(jute.create("/a", b"1", ephemeral=True), connection.deadline())
node = jute.node_of((await connection.call(jute.get_data("/a"), connection.deadline())).body)
await connection.close()  # ends the session: "/a" is deleted
```

A watch belongs to a channel, so `prepare` sets it on each new one. Events may have been missed in between:

```python
async def watch(channel: Channel) -> None:
    await channel.send(jute.watch_tree("/a"), clock.monotonic() + 10)
```

`call_all` pipelines several requests and returns server errors as values. A `repeatable` request is sent again on the
next channel; any other that was sent when the channel was lost raises `OutcomeUncertain`.
"""
