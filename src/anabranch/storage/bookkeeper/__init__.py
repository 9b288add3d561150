"""Ledgers on Apache BookKeeper: the client, without I/O so far. Nothing is wired to brokers yet.

Needs bookies 4.17.3 or newer: older ones confirm writes to a ledger that was fenced and deleted.

| module | what it is |
|---|---|
| `packets` | protocol version 2 of bookies: requests to bytes, bytes to answers |
| `entry_body` | what a bookie stores of an entry, with its digest |
| `ledger_metadata` | metadata of a ledger, its encoding, its path |
| `writer_state` | state machine: pending entries, ensemble changes, close |
| `recovery_state` | state machine: closes the ledger of another writer |
| `errors` | errors beside those of the storage port |

The simulation of both machines under faults: `tests/simulation/test_bookkeeper_ledgers.py`.
"""
